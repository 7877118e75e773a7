"""XLA's scheduler and the gradients of a replay."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from equality import assert_equal, fresh, noise, train

import tfgc
from tfgc._framework import xla_schedule
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


def barriers(model, x, jit_compile):
    @tf.function(jit_compile=jit_compile)
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(x, training=True) ** 2)
        return tape.gradient(loss, model.trainable_variables)

    graph = step.get_concrete_function(x).graph
    return [op for op in graph.get_operations() if op.type == "XlaOptimizationBarrier"]


def test_gradients_of_a_replay_come_together_under_xla():
    """XLA put those of kernels off, and held what they are made of."""
    model = fresh(chain)
    tfgc.enable(model, tfgc.plan(model, strategy="manual", keep=["dense_1", "dense_3"]))
    assert not barriers(model, noise(4, 8), False)
    # Two kernels and biases each, and what flows on from the second segment: nobody asks for the batch's gradient.
    assert sorted(len(op.inputs) for op in barriers(model, noise(4, 8), True)) == [4, 5]


@pytest.mark.parametrize(("rank", "waiting"), [(2, [3]), (1, [])])
def test_what_nobody_asks_for_waits_for_no_kernel(rank, waiting):
    tensors = [tf.fill([2] * rank, float(i)) for i in range(4)]
    counts = []

    @tf.function(jit_compile=True)
    def made():
        found = xla_schedule.all_at_once([*(t + 1.0 for t in tensors), None], 2, [1])
        graph = tf.compat.v1.get_default_graph()
        counts.append([len(op.inputs) for op in graph.get_operations() if op.type == "XlaOptimizationBarrier"])
        return found[:-1]

    for i, tensor in enumerate(made(), start=1):
        np.testing.assert_array_equal(tensor, np.full([2] * rank, float(i)))
    assert counts == [waiting]


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
