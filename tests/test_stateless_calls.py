"""`model.stateless_call`: states are tensors there, and gradients flow through them as in plain code."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from equality import fresh, in_turn, mostly, noise

import tfgc

L = keras.layers
X = tf.constant(noise(8, 16))
WAYS = {"eager": lambda run: run, "graph": tf.function, "xla": lambda run: tf.function(run, jit_compile=True)}


def moving():
    parts = [part for _ in range(3) for part in (L.Dense(16, "tanh"), L.BatchNormalization(momentum=0.5))]
    return keras.Sequential([keras.Input((16,)), *parts, L.Dense(2)])


def spectral():
    layers = [L.Dense(16, "tanh"), L.SpectralNormalization(L.Dense(16, "tanh")), L.Dense(16, "tanh"), L.Dense(2)]
    return keras.Sequential([keras.Input((16,)), *layers])


def gradients(model):
    """Of a call, and of one that reads the states which the first returns."""
    weights = [tf.convert_to_tensor(v.value) for v in model.trainable_variables]
    states = [tf.convert_to_tensor(v.value) for v in model.non_trainable_variables]
    with tf.GradientTape() as tape:
        tape.watch(weights)
        made, states = model.stateless_call(weights, states, X, training=True)
        later, _ = model.stateless_call(weights, states, 2 * X, training=False)
        loss = tf.reduce_sum(tf.sin(made)) + tf.reduce_sum(tf.sin(later))
    return [loss, *tape.gradient(loss, weights)]


@pytest.mark.gate
@pytest.mark.parametrize(("case", "compiled"), in_turn([*itertools.product([moving, spectral], WAYS)], [True, False]))
def test_gradients_through_states_are_the_plain_ones(case, compiled):
    build, way = case

    def found(enabled):
        model = fresh(build)
        if enabled:
            plan = tfgc.plan(model, 8, strategy="uniform", segments=2)
            tfgc.enable(model, plan)
        return WAYS[way](lambda: gradients(model))()

    for ours, plain in zip(found(True), found(False), strict=True):
        np.testing.assert_allclose(ours, plain, rtol=1e-4, atol=1e-4)


class Penalized(L.Layer):
    """Draws, keeps statistics and adds a loss."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense, self.norm, self.drop = L.Dense(16, "tanh"), L.BatchNormalization(momentum=0.5), L.Dropout(0.3)

    def call(self, x, training=None):
        self.add_loss(1e-2 * tf.reduce_sum(self.dense(x) ** 2))
        return self.drop(self.norm(self.dense(x), training=training), training=training)


@pytest.mark.parametrize("way", mostly("graph", modes=WAYS))
def test_recomputed_parts_read_and_write_the_values_of_the_scope(way):
    """Their gradients, those of gradients by the values of weights, new states, and losses, in two steps."""

    def build():
        return keras.Sequential([keras.Input((16,)), Penalized(), Penalized(), L.Dense(2)])

    def step(model, weights, states):
        with tf.GradientTape() as outer:
            outer.watch(weights)
            with tf.GradientTape() as tape:
                tape.watch([*weights, X])
                for scale in (1.0, 2.0):
                    made, states, losses = model.stateless_call(
                        weights, states, scale * X, training=True, return_losses=True
                    )
                loss = tf.reduce_sum(tf.sin(made)) + tf.add_n(losses)
            first = tape.gradient(loss, [*weights, X])
            penalty = tf.reduce_sum(first[-1] ** 2)
        return [loss, *losses, *states, *first, *(g for g in outer.gradient(penalty, weights) if g is not None)]

    def found(recomputed):
        model = fresh(build)
        for layer in model.layers if recomputed else ():
            layer.call = tfgc.recompute(layer.call)
        before = [v.numpy() for v in model.variables]
        values = [
            [tf.constant(v.value) for v in vs] for vs in (model.trainable_variables, model.non_trainable_variables)
        ]
        made = WAYS[way](lambda: step(model, *values))()
        for value, variable in zip(before, model.variables, strict=True):
            np.testing.assert_array_equal(value, variable)
        return made

    plain, ours = found(False), found(True)
    assert len(plain) > 20
    for a, b in zip(ours, plain, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * max(1.0, np.max(np.abs(b))))
