"""Losses that compare each sample with all others of the batch, which slices of the step cannot give.

Slices of segments can: a batch eight times as large, in the memory of the plain step, with its gradients.
"""

import keras
import memory
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

import tfgc

pytestmark = pytest.mark.gate

L = keras.layers
BATCH = 32


def image_encoder():
    x = inputs = keras.Input((32, 32, 3), name="image")
    for _ in range(2):
        x = L.LayerNormalization()(L.Conv2D(8, 3, padding="same", activation="gelu")(x))
    x = L.Dropout(0.1)(L.GlobalAveragePooling2D()(x))
    return inputs, L.UnitNormalization()(L.Dense(8)(x))


def simclr():
    """Two views of each image, one half of the batch behind the other; each is to find the other one among all."""

    def loss(_, made):
        n = ops.shape(made)[0]
        scores = ops.matmul(made, ops.transpose(made)) / 0.1 - 1e4 * ops.eye(n)
        return ops.mean(ops.sparse_categorical_crossentropy((ops.arange(n) + n // 2) % n, scores, from_logits=True))

    return keras.Model(*image_encoder()), loss


def clip():
    """Images and captions, each of which is to find the other one among all."""
    image, seen = image_encoder()
    text = keras.Input((48,), dtype="int32", name="text")
    x = L.Embedding(50, 32)(text)
    x = L.Add()([x, L.MultiHeadAttention(4, 8, dropout=0.1)(x, x)])
    x = L.Dense(32)(L.Dense(64, activation="gelu")(L.LayerNormalization()(x)))
    read = L.UnitNormalization()(L.Dense(8)(L.GlobalAveragePooling1D()(x)))

    def loss(_, made):
        seen, read = ops.split(made, 2, axis=-1)
        scores, own = 10 * ops.matmul(seen, ops.transpose(read)), ops.arange(ops.shape(made)[0])
        ways = (ops.sparse_categorical_crossentropy(own, s, from_logits=True) for s in (scores, ops.transpose(scores)))
        return ops.mean(sum(ways)) / 2

    return keras.Model([image, text], L.Concatenate()([seen, read])), loss


def found(build, batch, slices, is_measured=True):
    """The peak of a step and its prediction, and the gradients."""
    model, loss = build()
    plan = None
    if slices:
        plan = tfgc.plan(model, batch, strategy="optimal", slices=slices, loss=loss)
        tfgc.enable(model, plan)
    draw = np.random.default_rng(1)
    arrays = draw.normal(size=(batch, 32, 32, 3)), draw.integers(0, 50, (batch, 48))
    x = [tf.cast(array, t.dtype) for array, t in zip(arrays, model.inputs)]

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            value = loss(None, model(x if len(x) > 1 else x[0], training=True))
        return [tf.convert_to_tensor(g) for g in tape.gradient(value, [v.value for v in model.trainable_variables])]

    predicted = tfgc.estimate(model, batch, plan, loss=loss)
    gradients = [g.numpy() for g in step(x)]
    return memory.peak(step, x) if is_measured else None, predicted.peak_bytes, gradients


@pytest.mark.parametrize("build", [pytest.param(simclr, marks=pytest.mark.slow), clip])
def test_a_batch_eight_times_as_large_in_the_memory_of_the_plain_step(build):
    peak, predicted, _ = memory.alone(found, build, BATCH, 0)
    _, _, expected = memory.alone(found, build, 8 * BATCH, 0, False)
    large_peak, large_predicted, gradients = memory.alone(found, build, 8 * BATCH, 16)
    assert large_predicted <= predicted
    assert large_peak <= peak
    norms = [np.linalg.norm(g) for g in expected]
    for one, other, norm in zip(expected, gradients, norms, strict=True):
        # That of the biases of keys is zero, but for rounding.
        assert np.linalg.norm(other - one) <= 1e-4 * max(norm, 1e-3 * max(norms))
