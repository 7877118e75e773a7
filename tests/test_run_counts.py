"""Count how often each layer runs, forward and backward, from a table.

The layers are `models.Traced`, which print their name when they run.
"""

import keras
import pytest
import tensorflow as tf
from equality import MODES, noise
from models import run_traced, traced_chain

import tfgc

X = noise(4, 3)


def once(*names):
    return {f"{way} {name}": 1 for name in names for way in ("forward", "backward")}


# plan -> how often each layer runs forward; backward is always once
TABLE = [
    (1, {"l0": 1, "l1": 1, "l2": 1, "l3": 1}),
    (2, {"l0": 2, "l1": 2, "l2": 1, "l3": 1}),
    (3, {"l0": 2, "l1": 2, "l2": 2, "l3": 1}),
    (4, {"l0": 2, "l1": 2, "l2": 2, "l3": 1}),
]


@pytest.mark.parametrize("mode", MODES)
def test_nothing_is_replayed_without_a_gradient(mode, lines):
    model = tfgc.enable(traced_chain(lines), strategy="uniform")
    run_traced(model, mode, lambda tape, y, model: y)
    assert lines() == {f"forward l{i}": 1 for i in range(4)}


def test_inference_runs_the_original_code(lines):
    model = tfgc.enable(traced_chain(lines), strategy="uniform")
    model.predict(X, verbose=0)
    assert lines() == {f"forward l{i}": 1 for i in range(4)}


@pytest.mark.parametrize("mode", MODES)
def test_frozen_in_the_middle_still_passes_the_gradient_on(mode, lines):
    model = traced_chain(lines)
    model.layers[1].trainable = False
    tfgc.enable(model, tfgc.plan(model, strategy="uniform", segments=3))
    gradient = run_traced(model, mode)
    tf.debugging.assert_equal(gradient, tf.reduce_sum(X, 0))
    assert lines()["backward l1"] == 1


def test_gradients_do_not_vanish_when_a_compiled_segment_is_called_again(lines):
    model = tfgc.enable(traced_chain(lines), strategy="uniform")
    gradients = [run_traced(model, "compiled") for _ in range(3)]
    for gradient in gradients:
        tf.debugging.assert_equal(gradient, tf.reduce_sum(X, 0))


def test_a_smaller_last_batch_and_a_larger_one():
    model = keras.Sequential([keras.Input((3,)), *(keras.layers.Dense(4, activation="tanh") for _ in range(4))])
    tfgc.enable(model, strategy="uniform")
    for n in (4, 4, 3, 0, 7):
        x = noise(n, 3)
        with tf.GradientTape() as tape:
            y = tf.reduce_sum(model(x))
        ours = tape.gradient(y, [v.value for v in model.trainable_variables])
        tfgc.disable(model)
        with tf.GradientTape() as tape:
            y = tf.reduce_sum(model(x))
        plain = tape.gradient(y, [v.value for v in model.trainable_variables])
        tfgc.enable(model, strategy="uniform")
        for a, b in zip(plain, ours):
            tf.debugging.assert_near(a, b, rtol=1e-5, atol=1e-6)
