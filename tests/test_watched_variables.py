"""Gradients of variables that do not train, where a tape watches them: of frozen layers, and of plain variables."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from equality import fresh, in_turn, noise

import tfgc

L = keras.layers
X = noise(6, 8)


def frozen():
    model = keras.Sequential([keras.Input((8,)), *(L.Dense(8, activation="gelu") for _ in range(6))])
    model.layers[1].trainable = model.layers[4].trainable = False
    return model


def gradients(model, watched):
    with tf.GradientTape() as tape:
        tape.watch(watched)
        loss = tf.reduce_sum(tf.square(model(X, training=True)))
    return tape.gradient(loss, [*watched, *model.trainable_variables])


PLANS = {"optimal": {}, "uniform": {"segments": 3}, "keep_all": {}, "in slices": {"strategy": "optimal", "slices": 3}}
WAYS = {
    "eager loop": lambda f: f,
    "graph": tf.function,
    "XLA": lambda f: tf.function(f, jit_compile=True),
}


@pytest.mark.parametrize(("name", "way"), in_turn(PLANS, WAYS))
def test_watched_variables_of_frozen_layers_have_the_plain_gradients(name, way):
    model = fresh(frozen)
    watched = [v.value for layer in (model.layers[1], model.layers[4]) for v in layer.variables]
    plain = gradients(model, watched)
    assert all(np.any(g) for g in plain)
    options = {"strategy": name, **PLANS[name]}
    tfgc.enable(model, tfgc.plan(model, len(X), **options))
    run = WAYS[way](lambda watched: gradients(model, watched))
    for some in ([], watched, watched[:1], []):  # The second asks for more than what the first compiled.
        expected = plain[: len(some)] + plain[len(watched) :]
        for found, each in zip(run(some), expected, strict=True):
            np.testing.assert_allclose(found, each, rtol=2e-5, atol=1e-6)


def test_frozen_variables_that_nobody_watches_cost_nothing():
    """Plain Keras computes them, since TensorFlow's tapes watch what is read."""
    model = fresh(frozen)
    tfgc.enable(model, tfgc.plan(model, len(X)))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(X, training=True))
    assert tape.gradient(loss, model.layers[1].kernel.value) is None


@pytest.mark.parametrize("way", WAYS)
def test_watched_plain_variables_that_do_not_train_have_their_gradient(way):
    variable, x = tf.Variable([2.0, 3.0], trainable=False), tf.constant([1.0, 4.0])

    def step(function):
        with tf.GradientTape() as tape:
            tape.watch(variable)
            y = tf.reduce_sum(function(x))
        return tape.gradient(y, variable)

    def function(x):
        return tf.tanh(x * variable * 0.1)

    found = WAYS[way](lambda: step(tfgc.recompute(function)))()
    np.testing.assert_allclose(found, step(function), rtol=1e-6)
