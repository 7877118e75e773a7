"""Eager loops that call compiled segments: what their gradients are, what they keep, and what budgets buy there."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from equality import noise
from memory import alone, info

import tfgc

L = keras.layers


class Relaxed(L.Layer):
    """Moves its input down the gradient of an energy, which a tape inside of its call gives, zero if it is lost."""

    def build(self, shape):
        self.w = self.add_weight(shape=(shape[-1], shape[-1]))

    def call(self, x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            energy = tf.reduce_sum(tf.tanh(x @ tf.convert_to_tensor(self.w)) ** 2)
        return x - 0.5 * tape.gradient(energy, x, unconnected_gradients="zero")


@pytest.mark.parametrize(
    "how",
    [{}, pytest.param({"strategy": "sqrt"}, marks=pytest.mark.slow), {"layers": Relaxed}],
    ids=["default", "sqrt", "layers"],
)
def test_tapes_inside_of_layers_record_at_every_batch_size(how):
    def trained(**options):
        keras.utils.set_random_seed(3)
        model = keras.Sequential([keras.Input((8,)), L.Dense(8), Relaxed(), L.Dense(8), Relaxed(), L.Dense(4)])
        model.compile("sgd", "mse", run_eagerly=True)
        if options:
            tfgc.enable(model, verbose=0, **{key: value for key, value in options.items() if key != "on"})
        for batch in (4, 3, 5):
            model.train_on_batch(noise(batch, 8), noise(batch, 4, seed=2))
        return model.get_weights()

    for expected, found in zip(trained(), trained(on=True, **how)):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def held_by_gelus():
    """Bytes that a tape holds after a compiled call of two layers that are kept."""
    model = keras.Sequential([keras.Input((256,)), *(L.Dense(256, "gelu") for _ in range(2)), L.Dense(1)])
    tfgc.enable(model, tfgc.plan(model, 1024, strategy="keep_all"))
    x, found = tf.ones((1024, 256)), []
    for _ in range(3):
        before = info("current")
        with tf.GradientTape() as tape:
            y = model(x, training=True)
        found.append(info("current") - before)
        tape.gradient(y, model.trainable_variables[0].value)
        del tape, y
    return min(found)


def test_a_kept_segment_keeps_what_its_gradient_reads():
    """TensorFlow would keep six tensors for each gelu, two of them for gradients of numbers."""
    tensor = 1024 * 256 * 4
    assert 8 * tensor <= alone(held_by_gelus) < 8.5 * tensor
