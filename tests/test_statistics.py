"""Recomputed statistics: of normalizations, squeeze-and-excitation and norms, in every mode, with equal gradients."""

import functools
import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf
from equality import check_enabled, in_turn, noise

L = keras.layers
X, Y = noise(4, 8, 8, 64), [noise(4, 1, seed=2)]


class OwnStatistic(L.Layer):
    """A layer of a user's: it divides by a norm of each sample."""

    def call(self, x):
        return x / (1 + tf.sqrt(tf.reduce_sum(x * x, axis=(1, 2, 3), keepdims=True)))


class Excitation(L.Layer):
    def build(self, shape):
        self.dense = L.Dense(shape[-1], activation="sigmoid")
        self.dense.build((shape[0], shape[-1]))

    def call(self, x):
        return x * self.dense(tf.reduce_mean(x, axis=(1, 2)))[:, None, None, :]


STATISTICS = {
    "batch": L.BatchNormalization,
    "layer": L.LayerNormalization,
    "group": functools.partial(L.GroupNormalization, 1),
    "rms": L.RMSNormalization,
    "unit": L.UnitNormalization,
    "squeeze and excitation": Excitation,
    "a norm": OwnStatistic,
}


def blocks(statistic):
    """No bias: the gradient of one before a BatchNormalization is zero but for rounding."""
    x = inputs = keras.Input((8, 8, 64))
    for _ in range(4):
        x = L.Activation("tanh")(statistic()(L.Conv2D(64, 1, use_bias=False)(x)))
    return keras.Model(inputs, L.Dense(1)(L.GlobalAveragePooling2D()(x)))


@pytest.mark.parametrize(("name", "mode"), in_turn(STATISTICS))
def test_gradients_and_states_are_those_of_plain_training(name, mode):
    check_enabled(functools.partial(blocks, STATISTICS[name]), X, Y, mode, segments=3)


def sequences(normalization, freeze=False):
    """Masked steps; frozen, every other product and normalization."""
    x = L.Masking()(inputs := keras.Input((64, 16)))
    for i in range(4):
        dense, statistic = L.Dense(16, activation="tanh"), normalization()
        dense.trainable = statistic.trainable = not (freeze and i % 2)
        x = statistic(dense(x))
    return keras.Model(inputs, L.Dense(1)(L.GlobalAveragePooling1D()(x)))


MASKED = noise(8, 64, 16) * (np.arange(64) < np.arange(8, 72, 8)[:, None])[..., None].astype("float32")
RENORMALIZED = functools.partial(L.BatchNormalization, renorm=True)
VARIANTS = {
    "masks": L.BatchNormalization,
    "renorm": RENORMALIZED,
    "frozen": L.BatchNormalization,
    "mixed_bfloat16": L.BatchNormalization,
    "mixed_float16": L.LayerNormalization,
}


@pytest.mark.gate
@pytest.mark.parametrize(("name", "mode"), in_turn(VARIANTS, first=1))
def test_normalizations_that_are_masked_frozen_or_of_mixed_precision(name, mode):
    if name == "renorm" and "renorm" not in inspect.signature(L.BatchNormalization).parameters:
        pytest.skip("this Keras has no batch renormalization")
    policy = name if name.startswith("mixed") else "float32"
    keras.config.set_dtype_policy(policy)
    build = functools.partial(sequences, VARIANTS[name], freeze=name == "frozen")
    check_enabled(build, MASKED, [noise(8, 1, seed=2)], mode, segments=3, policy=policy)
