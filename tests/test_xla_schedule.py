"""XLA's scheduler and the gradients of a replay."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from equality import assert_equal, fresh, in_pieces, noise, train

import tfgc
from tfgc.zoo.gpt import TiedEmbedding

L = keras.layers


def embedded():
    tokens = keras.Input((6,), dtype="int32")
    x = L.Dense(8, "tanh")(L.Embedding(20, 8)(tokens))
    return keras.Model(tokens, L.Dense(3)(L.Dense(8, "tanh")(x)))


def tied():
    """Both halves read the table of an embedding, which gets a sparse and a dense gradient."""
    tokens = keras.Input((6,), dtype="int32")
    table = TiedEmbedding(20, 8)
    return keras.Model(tokens, L.Dense(3)(table(L.Dense(8, "tanh")(table(tokens)), reverse=True)))


def chain():
    return keras.Sequential([keras.Input((8,)), *(L.Dense(8, "tanh") for _ in range(4)), L.Dense(3)])


@pytest.mark.parametrize("build", [chain, embedded, tied])
def test_training_under_xla(build):
    x = noise(4, 8) if build is chain else np.arange(24).reshape(4, 6) % 20
    y = [noise(4, 3) if build is chain else noise(4, 6, 3)] * 2
    plain = train(fresh(build), x, y, graph=True, jit_compile=True)
    model = fresh(build)
    tfgc.enable(model, strategy="uniform", segments=3)
    assert_equal(plain, train(model, x, y, graph=True, jit_compile=True), exact=False)


def test_gradients_of_gradients_under_xla():
    model = fresh(chain)
    x = noise(4, 8)

    def second(call):
        @tf.function(jit_compile=True)
        def first(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = tf.reduce_sum(call(x, training=True) ** 2)
            return tape.gradient(y, x)

        with tf.GradientTape() as tape:
            penalty = tf.reduce_sum(first(tf.constant(x)) ** 2)
        return tape.gradient(penalty, [v.value for v in model.trainable_variables])

    expected = second(model)
    tfgc.enable(model, strategy="uniform", segments=2)
    for one, other in zip(second(model), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_jacobians_under_xla():
    model = fresh(chain)
    x = tf.constant(noise(4, 8))

    @tf.function(jit_compile=True)
    def jacobian(x):
        with tf.GradientTape() as tape:
            y = model(x, training=True)
        return tape.jacobian(y, [v.value for v in model.trainable_variables], experimental_use_pfor=True)

    expected = jacobian.python_function(x)
    tfgc.enable(model, strategy="uniform", segments=2)
    for one, other in zip(jacobian(x), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


class Shift(L.Layer):
    """Draws a whole number, which does not wait under XLA."""

    def call(self, x):
        return x * tf.cast(1 + tf.random.uniform([], 0, 3, tf.int32), x.dtype)


def test_whole_numbers_drawn_in_a_branch_under_xla():
    """The loss is linear in each kernel: one that is not seen with the number of the first run does not make it up."""
    one, two, three = (L.Dense(units, use_bias=False) for units in (8, 8, 4))
    model = fresh(lambda: keras.Sequential([keras.Input((8,)), one, Shift(), two, three]))
    tfgc.enable(model, in_pieces(model, noise(4, 8), 2), verbose=0)

    @tf.function(jit_compile=True)
    def step(x, flag):
        with tf.GradientTape() as tape:
            y = tf.cond(flag, lambda: model(x, training=True), lambda: model(-x, training=True))
            loss = tf.reduce_sum(y)
        return loss, tape.gradient(loss, [v.value for v in model.trainable_variables])

    for flag in [True, False] * 3:
        loss, gradients = step(tf.constant(noise(4, 8)), tf.constant(flag))
        made_up = [tf.reduce_sum(v * g) for v, g in zip(model.trainable_variables, gradients, strict=True)]
        np.testing.assert_allclose(made_up, [loss] * 3, rtol=1e-4)


def test_kernels_without_elements_under_xla():
    inputs = keras.Input((6,))
    x = L.Dense(8, "tanh")(inputs)
    x = L.Add()([L.Dense(8)(x), L.Dense(8, name="empty")(inputs[:, :0])])
    model = keras.Model(inputs, L.Dense(2)(L.Dense(8, "tanh")(x)))
    tfgc.enable(model, tfgc.plan(model, strategy="manual", keep=["dense", "add"]))

    @tf.function(jit_compile=True)
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(x, training=True) ** 2)
        return tape.gradient(loss, [v.value for v in model.trainable_variables])

    assert len(step(tf.constant(noise(4, 6)))) == 10
