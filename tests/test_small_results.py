"""What a replay takes over of the first run: small results, whose computation it leaves out, with equal gradients."""

import collections
import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from equality import assert_equal, check_enabled, fresh, in_turn, noise, plain_steps, train

import tfgc
from tfgc._pure import small_results

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
REDUCTIONS = ("Max", "Mean", "Sum")


def blocks(statistic):
    """No bias: the gradient of one before a BatchNormalization is zero but for rounding."""
    x = inputs = keras.Input((8, 8, 64))
    for _ in range(4):
        x = L.Activation("tanh")(statistic()(L.Conv2D(64, 1, use_bias=False)(x)))
    return keras.Model(inputs, L.Dense(1)(L.GlobalAveragePooling2D()(x)))


@pytest.mark.parametrize(("name", "mode"), in_turn(STATISTICS))
def test_gradients_and_states_with_results_of_the_first_run(name, mode):
    check_enabled(functools.partial(blocks, STATISTICS[name]), X, Y, mode, segments=3)


@pytest.mark.parametrize(
    ("nested", "jit_compile"),
    [(False, False), pytest.param(False, True, marks=pytest.mark.gate), (True, False), (True, True)],
)
def test_steps_of_plans_with_results_of_the_first_run(nested, jit_compile):
    build = functools.partial(blocks, L.BatchNormalization)
    plain = plain_steps(build, X, Y, graph=True, jit_compile=jit_compile)
    model = fresh(build)
    tfgc.enable(model, tfgc.plan(model, 4, strategy="optimal") if nested else tfgc.plan(model, 4, strategy="sqrt"))
    assert_equal(plain, train(model, X, Y, graph=True, jit_compile=jit_compile), exact=False)


def traced(model, x, segments):
    """The operations of a step, by where they come from: the first run, the replay, its gradient, or what is kept."""
    tfgc.enable(model, tfgc.plan(model, strategy="uniform", segments=segments))

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(x, training=True) ** 2)
        return tape.gradient(loss, model.trainable_variables)

    counts = collections.Counter()
    for op in step.get_concrete_function(tf.TensorSpec(x.shape)).graph.get_operations():
        replayed = op.name.startswith("replay") and "gradient_tape" not in op.name
        counts[op.type, "replay" if replayed else "first"] += "gradient_tape" not in op.name
    return counts


@pytest.mark.parametrize("name", STATISTICS)
def test_reductions_run_once_and_all_else_as_before(name, monkeypatch):
    ours = traced(fresh(functools.partial(blocks, STATISTICS[name])), X, 3)
    monkeypatch.setattr(small_results, "small_results", lambda *_: [])
    before = traced(fresh(functools.partial(blocks, STATISTICS[name])), X, 3)
    assert any(before[kind, "replay"] for kind in REDUCTIONS)
    assert not any(ours[kind, "replay"] for kind in REDUCTIONS)
    assert ours["Conv2D", "replay"] == before["Conv2D", "replay"]
    assert ours["Tanh", "replay"] == before["Tanh", "replay"]


def test_only_small_results_of_work_on_arguments_are_taken_over():
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, (None, 64, 4))
        few = tf.reduce_mean(x, axis=1)
        over_batch = tf.reduce_mean(x, axis=(0, 2))  # for each of 32 samples a quarter
        tf.reduce_mean(x, axis=2)  # a quarter
        x[:, :1]
        tf.gather(x, [0], axis=1)
        tf.reduce_sum(tf.ones((64, 4)))
        weight = tf.compat.v1.placeholder(tf.float32, (64, 4))
        norm = tf.reduce_sum(weight)
        tf.raw_ops.TensorListFromTensor(tensor=x, element_shape=[64, 4])  # a scalar that holds all of it
        tf.where(x > 0)  # of any size
        product = tf.matmul(tf.reshape(x, (-1, 256)), tf.ones((256, 4)))
    found = small_results.small_results(graph.get_operations(), [x, weight])
    assert [tensor.op for tensor in found] == [few.op, over_batch.op, norm.op, product.op]


def test_statistics_of_another_batch_size_are_its_own():
    """A trace for one size is no trace for another."""
    model, other = (fresh(functools.partial(blocks, L.BatchNormalization)) for _ in range(2))
    tfgc.enable(model, tfgc.plan(model, strategy="uniform", segments=3))

    def gradients(model, x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(x, training=True) ** 2)
        return tape.gradient(loss, model.trainable_variables)

    ours, plain = (tf.function(functools.partial(gradients, m), reduce_retracing=True) for m in (model, other))
    for n in (4, 3, 2):
        for one, expected in zip(ours(X[:n]), plain(X[:n])):
            np.testing.assert_allclose(one, expected, rtol=1e-4, atol=1e-4)
