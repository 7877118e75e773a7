"""Calls and gradients where TensorFlow stops all tapes: in `tf.init_scope`, in first runs of `tf.recompute_grad`."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from equality import fresh, in_turn, noise

import tfgc

L = keras.layers
X = tf.constant(noise(8, 16))
WAYS = {
    "compiled": {"strategy": "uniform", "segments": 3},
    "layers": {"layers": L.Dense},
}


def build():
    layers = [*(L.Dense(16, "tanh") for _ in range(4)), L.LayerNormalization(), L.Dropout(0.3, seed=3), L.Dense(2)]
    return keras.Sequential([keras.Input((16,)), *layers])


def call(model):
    return model(X, training=True)


def in_init_scope(model):
    with tf.init_scope():
        call(model)


def recomputed_by_tensorflow(model):
    tf.recompute_grad(lambda x: model(x, training=True))(X)


def gradients(model, run=call):
    with tf.GradientTape() as tape:
        tape.watch(X)
        loss = tf.reduce_sum(run(model) ** 2)
    return tape.gradient(loss, [X, *(v.value for v in model.trainable_variables)])


def after_a_call(first):
    def run(model):
        first(model)
        return gradients(model)

    return run


def under_recompute_grad(model):
    return gradients(model, lambda model: tf.recompute_grad(lambda x: model(x, training=True))(X))


def asked_for_in_init_scope(model):
    with tf.GradientTape() as tape:
        tape.watch(X)
        loss = tf.reduce_sum(call(model) ** 2)
    with tf.init_scope():
        return tape.gradient(loss, [X, *(v.value for v in model.trainable_variables)])


def in_init_scope_of_another_tape(model):
    """What is asked for where tapes are stopped is no part of what the other tape records."""
    with tf.GradientTape() as outer:
        found = asked_for_in_init_scope(model)
        total = tf.add_n([tf.reduce_sum(g**2) for g in found])
    return [*found, *outer.gradient(total, [v.value for v in model.trainable_variables])]


STEPS = {
    "a call in init_scope first": after_a_call(in_init_scope),
    "a call under recompute_grad first": after_a_call(recomputed_by_tensorflow),
    "under recompute_grad": under_recompute_grad,
    "asked for in init_scope": asked_for_in_init_scope,
    "beside another tape": in_init_scope_of_another_tape,
}


def without_dropout():
    """`tf.recompute_grad` draws anew, with tfgc and without."""
    model = build()
    model.get_layer("dropout").rate = 0.0
    return model


@pytest.mark.parametrize(("name", "way"), in_turn(STEPS, WAYS))
def test_gradients_are_the_plain_ones(name, way):
    """What was first traced where no tape recorded gave no gradients from then on, without a word."""
    kind = without_dropout if name == "under recompute_grad" else build
    plain = STEPS[name](fresh(kind))
    model = fresh(kind)
    found = STEPS[name](tfgc.enable(model, verbose=0, **WAYS[way]))
    assert sum(g is not None for g in plain) >= 13
    for ours, expected in zip(found, plain, strict=True):
        assert (ours is None) == (expected is None)
        if expected is not None:
            np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-5)
