"""`model.stateless_call`: states are tensors there, and gradients flow through them as in plain code."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from equality import fresh, in_turn, noise

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
            tfgc.enable(model, plan, compile_segments=compiled)
        return WAYS[way](lambda: gradients(model))()

    for ours, plain in zip(found(True), found(False), strict=True):
        np.testing.assert_allclose(ours, plain, rtol=1e-4, atol=1e-4)
