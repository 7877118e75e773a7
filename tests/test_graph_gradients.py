"""Layers that take `tf.gradients`: of what is outside of them, and of what they compute."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from equality import fresh, noise

import tfgc

L = keras.layers
A, B = noise(64, 2), noise(64, 2)
Y = np.ones((64, 1), "float32")


def network(width=32):
    a, b = keras.Input((2,)), keras.Input((2,))
    x = L.Concatenate()([a, b])
    for _ in range(4):
        x = L.Dense(width, "tanh")(x)
    return keras.Model([a, b], L.Dense(1, use_bias=False)(x), name="inner")  # a bias has no part in slopes


def eikonal():
    """The norm of a time of travel's slope, as networks that solve differential equations have it."""
    inner, a, b = network(), keras.Input((2,)), keras.Input((2,))
    time = L.Add()([inner([a, b]), inner([b, a])])
    slope = L.Lambda(
        lambda x: tf.gradients(x[0], x[1], unconnected_gradients="zero")[0], output_shape=(2,), name="slope"
    )([time, b])
    norm = L.Lambda(lambda x: tf.reduce_sum(x**2, -1, keepdims=True), output_shape=(1,))(slope)
    return keras.Model([a, b], norm)


class Slope(L.Layer):
    """Computes what it takes the gradients of."""

    def __init__(self):
        super().__init__()
        self.inner = network()

    def build(self, shape):
        self.inner.build([shape] * 2)

    def compute_output_shape(self, shape):
        return shape

    def call(self, x):
        return tf.gradients(self.inner([x, x]), x)[0]


def slope_inside():
    a, b = keras.Input((2,)), keras.Input((2,))
    return keras.Model([a, b], L.Dense(1)(Slope()(L.Add()([a, b]))))


def trained(build, xla, **options):
    model = fresh(build)
    model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=xla)
    if options:
        tfgc.enable(model, verbose=0, **options)
    losses = model.fit([A, B], Y, batch_size=32, epochs=2, shuffle=False, verbose=0).history["loss"]
    return losses, [weight.numpy() for weight in model.trainable_variables]


def assert_as_plain(build, xla, **options):
    losses, weights = trained(build, xla, **options)
    plain_losses, plain_weights = trained(build, xla)
    np.testing.assert_allclose(losses, plain_losses, rtol=1e-5)
    for value, plain in zip(weights, plain_weights, strict=True):
        np.testing.assert_allclose(value, plain, rtol=1e-4, atol=1e-6)


@pytest.mark.gate
def test_a_layer_that_differentiates_what_is_outside_of_it_is_part_of_a_step_under_xla():
    """Plain training moves as much without XLA."""
    (_, ours), (_, plain), (_, other) = (
        trained(eikonal, xla, **options) for xla, options in ((True, {"strategy": "sqrt"}), (True, {}), (False, {}))
    )
    for a, b, c in zip(ours, plain, other, strict=True):
        assert np.linalg.norm(a - b) <= 2 * np.linalg.norm(c - b)


@pytest.mark.gate
@pytest.mark.parametrize("strategy", ["optimal", "sqrt"])
@pytest.mark.usefixtures("optimizer_off")
def test_a_layer_that_differentiates_what_is_outside_of_it_is_part_of_the_step(strategy):
    losses, weights = trained(eikonal, False, strategy=strategy)
    plain_losses, plain_weights = trained(eikonal, False)
    assert losses == plain_losses
    for value, plain in zip(weights, plain_weights, strict=True):
        np.testing.assert_array_equal(value, plain)


@pytest.mark.filterwarnings("ignore::tfgc.NothingSavedWarning")
def test_a_layer_that_differentiates_what_it_computes_is_recomputed(replays):
    assert_as_plain(slope_inside, False, layers=["slope"])
    assert replays
