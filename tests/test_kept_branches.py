"""Replays wait for kept branches that ran after them, in whatever order a tape goes back."""

import keras
import memory
import numpy as np
import pytest
import tensorflow as tf

import tfgc

L = keras.layers
BATCH = 64


def towers(size=64, channels=(16, 32, 32)):
    """One encoder for two inputs; its second call is kept by the plans here."""
    images = [keras.Input((size, size, 3)) for _ in range(2)]
    convolved = [
        layer
        for c in channels
        for layer in (L.Conv2D(c, 3, padding="same"), L.BatchNormalization(), L.LeakyReLU(), L.AveragePooling2D(2))
    ]
    encoder = keras.Sequential([*convolved, L.Flatten(), L.Dense(32)])
    distance = L.Lambda(lambda t: keras.ops.abs(t[0] - t[1]))(list(map(encoder, images)))
    model = keras.Model(images, L.Dense(1)(distance))
    model.compile("sgd", "mse", jit_compile=False)
    draw = np.random.default_rng(0)
    x = [draw.normal(size=(BATCH, size, size, 3)).astype("float32") for _ in images]
    return model, x, draw.normal(size=(BATCH, 1)).astype("float32")


def peak_and_budget(share):
    model, x, y = towers()
    tfgc.enable(model, budget=share, verbose=0)
    x, y = [*map(tf.constant, x)], tf.constant(y)
    model.train_on_batch(x, y)
    (found,) = tfgc.status(model).plans
    assert any(segment.mode == "recompute" for segment in found.plan.segments)
    assert found.plan.segments[-1].mode == "keep"
    fixed = sum(4 * v.shape.num_elements() for v in [*model.variables, *model.optimizer.variables])
    return memory.peak(model.train_on_batch, x, y, steps=9, of=np.median) + fixed, found.plan.outlook.budget_bytes


@pytest.mark.parametrize("share", ["70%"])
def test_a_kept_branch_does_not_add_up_with_replays_of_another(share):
    peak, budget = memory.alone(peak_and_budget, share)
    assert peak < 1.02 * budget
