"""Count how often each layer runs, forward and backward, from a table.

The layers are `models.Traced`, which print their name when they run.
"""

import pytest
import tensorflow as tf
from equality import MODES, noise
from models import run_traced, traced_chain

import tfgc

X = noise(4, 3)


@pytest.mark.parametrize("mode", MODES)
def test_nothing_is_replayed_without_a_gradient(mode, lines):
    model = tfgc.enable(traced_chain(lines), strategy="uniform")
    run_traced(model, mode, lambda tape, y, model: y)
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
