"""Losses that compare each sample with all others of the batch, whose towers run in slices.

A batch eight times as large, in the memory of the plain step, with its gradients.
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


def towers():
    """Of images and of captions, each of which is to find the other one among all."""
    x = image = keras.Input((32, 32, 3), name="image")
    for _ in range(2):
        x = L.LayerNormalization()(L.Conv2D(8, 3, padding="same", activation="gelu")(x))
    seen = L.UnitNormalization()(L.Dense(8)(L.GlobalAveragePooling2D()(x)))
    text = keras.Input((48,), dtype="int32", name="text")
    x = L.Embedding(50, 32)(text)
    x = L.Add()([x, L.MultiHeadAttention(4, 8)(x, x)])
    x = L.Dense(32)(L.Dense(64, activation="gelu")(L.LayerNormalization()(x)))
    read = L.UnitNormalization()(L.Dense(8)(L.GlobalAveragePooling1D()(x)))
    return [keras.Model(image, seen), keras.Model(text, read)]


def loss(seen, read):
    scores, own = 10 * ops.matmul(seen, ops.transpose(read)), ops.arange(ops.shape(seen)[0])
    ways = (ops.sparse_categorical_crossentropy(own, s, from_logits=True) for s in (scores, ops.transpose(scores)))
    return ops.mean(sum(ways)) / 2


def found(batch, slices, in_graph):
    """The peak of a step, and the gradients."""
    models = towers()
    runs = [tfgc.recompute(model, slices=slices) if slices else model for model in models]
    draw = np.random.default_rng(1)
    images = tf.constant(draw.normal(size=(batch, 32, 32, 3)), "float32")
    texts = tf.constant(draw.integers(0, 50, (batch, 48)), "int32")
    weights = [v.value for model in models for v in model.trainable_variables]

    def step(*x):
        with tf.GradientTape() as tape:
            value = loss(*(run(each, training=True) for run, each in zip(runs, x)))
        return [tf.convert_to_tensor(g) for g in tape.gradient(value, weights)]

    taken = tf.function(step) if in_graph else step
    return memory.peak(taken, images, texts), [g.numpy() for g in taken(images, texts)]


@pytest.mark.parametrize("in_graph", [False, True])
def test_a_batch_eight_times_as_large_in_the_memory_of_the_plain_step(in_graph):
    peak, _ = memory.alone(found, BATCH, 0, in_graph)
    _, expected = memory.alone(found, 8 * BATCH, 0, in_graph)
    large_peak, gradients = memory.alone(found, 8 * BATCH, 16, in_graph)
    assert large_peak <= peak
    norms = [np.linalg.norm(g) for g in expected]
    for one, other, norm in zip(expected, gradients, norms, strict=True):
        # That of the biases of keys is zero, but for rounding.
        assert np.linalg.norm(other - one) <= 1e-4 * max(norm, 1e-3 * max(norms))
