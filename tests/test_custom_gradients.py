"""Layers with a `tf.custom_gradient`, as TensorFlow's silu: replays copy them, and their gradients have gradients."""

import dataclasses
import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from equality import MODES, check_enabled, fresh, in_turn, mostly, noise

import tfgc

L = keras.layers
X, Y = noise(4, 8, 8, 64), [noise(4, 1, seed=2)]


@tf.custom_gradient
def clipped_gradient(x):
    return tf.identity(x), lambda upstream: tf.clip_by_value(upstream, -1e-3, 1e-3)


@tf.custom_gradient
def two_results(x, y):
    made = tf.tanh(x) * y

    def gradient(upstream, other):
        upstream += 2 * other[..., None] * made
        return upstream * y * (1 - tf.tanh(x) ** 2), upstream * tf.tanh(x)

    return (made, tf.reduce_sum(made**2, axis=-1)), gradient


class TwoResults(L.Layer):
    def call(self, x):
        made, norms = two_results(x, tf.sigmoid(x))
        return made + 0.1 * norms[..., None]


class ClosesOverAnInput(L.Layer):
    """The gradient reads a tensor that is no argument of the function."""

    def call(self, x):
        scale = tf.cos(x)
        return tf.custom_gradient(lambda y: (y * 2.0, lambda upstream: upstream * (1 + scale**2)))(x)


class Twice(L.Layer):
    def call(self, x):
        return tf.nn.silu(clipped_gradient(tf.nn.silu(x)))


LAYERS = {
    "silu": lambda: L.Activation("silu"),
    "two results": TwoResults,
    "closes over an input": ClosesOverAnInput,
    "twice": Twice,
}


def blocks(layer, n=4):
    x = inputs = keras.Input((8, 8, 64))
    for _ in range(n):
        x = layer()(L.BatchNormalization()(L.Conv2D(64, 1, use_bias=False)(x)))
    return keras.Model(inputs, L.Dense(1)(L.GlobalAveragePooling2D()(x)))


@pytest.mark.parametrize(("name", "mode"), in_turn(LAYERS))
def test_training_with_a_custom_gradient(name, mode):
    check_enabled(functools.partial(blocks, LAYERS[name]), X, Y, mode, segments=3)


@pytest.mark.gate
@pytest.mark.parametrize("name", mostly("silu", modes=LAYERS))
def test_the_third_derivative_of_a_function_of_a_gradient(name):
    """Outside of the functions that take the inner gradients, where no tape sees a copy."""

    def third(model):
        @tf.function
        def first(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = tf.reduce_sum(model(x, training=False) ** 2)
            return tape.gradient(y, x)

        @tf.function
        def second(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = tf.reduce_sum(first(x) ** 2)
            return tape.gradient(y, x)

        weights = [v.value for v in model.trainable_variables]
        with tf.GradientTape() as tape:
            y = tf.reduce_sum(second(tf.constant(X)) ** 2)
        return tape.gradient(y, weights)

    plain, ours = (fresh(functools.partial(blocks, LAYERS[name], 2)) for _ in range(2))
    tfgc.enable(ours, tfgc.plan(ours, strategy="uniform", segments=2))
    for a, b in zip(third(plain), third(ours), strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6 * float(tf.reduce_max(tf.abs(a))))


class Inner(L.Layer):
    """Runs a dense layer by another function."""

    def __init__(self, how):
        super().__init__()
        self.dense, self.how = L.Dense(64, activation="tanh"), how

    def build(self, shape):
        self.dense.build(shape)

    def call(self, x):
        return self.how(lambda x: self.dense(x))(x)


class ReadsItsWeight(L.Layer):
    """The gradient of the weight is that of a variable which TensorFlow sees read."""

    def build(self, shape):
        self.scale = self.add_weight(shape=shape[-1:], initializer="ones", name="scale")

    def call(self, x):
        @tf.custom_gradient
        def scaled(x):
            def gradient(upstream, variables=None):
                return upstream * scale, [tf.reduce_sum(upstream * x, [0, 1, 2]) for _ in variables or ()]

            scale = tf.convert_to_tensor(self.scale)
            return x * scale, gradient

        return scaled(x)


MODES_AND_XLA = (*MODES, "xla")


def gradients_with(layer, mode, enabled):
    model = fresh(functools.partial(blocks, layer))
    if enabled:
        every = tfgc.plan(model, strategy="uniform", segments=3)
        every = dataclasses.replace(
            every, segments=tuple(dataclasses.replace(s, mode="recompute") for s in every.segments)
        )
        tfgc.enable(model, every)

    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(X, training=True) ** 2)
        return tape.gradient(loss, [v.value for v in model.trainable_variables])

    run = tf.function(step, jit_compile=mode == "xla" or None) if mode in ("graph", "xla") else step
    return run()


@pytest.mark.gate
@pytest.mark.parametrize(("mode", "how"), in_turn(MODES_AND_XLA, [tf.recompute_grad, keras.remat]))
def test_weights_that_a_layer_recomputes_itself_have_their_gradients(mode, how):
    plain, ours = (gradients_with(lambda: Inner(how), mode, enabled) for enabled in (False, True))
    for a, b in zip(plain, ours):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("mode", mostly("compiled", "graph", modes=MODES_AND_XLA))
def test_a_layer_whose_custom_gradient_reads_a_weight(mode):
    plain = gradients_with(ReadsItsWeight, mode, False)
    ours = gradients_with(ReadsItsWeight, mode, True)
    for a, b in zip(plain, ours):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("layer", "operation"),
    [
        (LAYERS["silu"], "Sigmoid"),
        (TwoResults, "Tanh"),
        (ClosesOverAnInput, "mul"),
        (ReadsItsWeight, "mul"),
        (functools.partial(Inner, tf.recompute_grad), "Tanh"),
        (functools.partial(Inner, keras.remat), "Tanh"),
    ],
    ids=["silu", "two results", "closes over an input", "reads its weight", "recompute_grad", "remat"],
)
def test_a_layer_with_a_custom_gradient_runs_again(layer, operation):
    """But for those of the last segment, which is kept: the last two of four."""
    model = fresh(functools.partial(blocks, layer))
    runs = tfgc.estimate(model, 4, tfgc.plan(model, 4, strategy="uniform", segments=3)).runs
    assert [count for name, count in runs.items() if name.endswith(f"/{operation}") and "norm" not in name] == [
        2,
        2,
        1,
        1,
    ]
