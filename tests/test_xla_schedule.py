"""XLA's scheduler and the gradients of a replay."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from equality import assert_equal, fresh, noise, train

import tfgc
from tfgc._core.plan import Plan
from tfgc._framework import xla_gradients
from tfgc._tracing import keras_graph
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
        found = xla_gradients.all_at_once([*(t + 1.0 for t in tensors), None], 2, [1])
        graph = tf.compat.v1.get_default_graph()
        counts.append([len(op.inputs) for op in graph.get_operations() if op.type == "XlaOptimizationBarrier"])
        return found[:-1]

    for i, tensor in enumerate(made(), start=1):
        np.testing.assert_array_equal(tensor, np.full([2] * rank, float(i)))
    assert counts == [waiting]


def test_kernels_of_a_replay_inside_do_not_stay_until_the_one_around_it_is_done():
    """Within half of a U-Net's plain step a nested plan held 112 MB of them: 331 MB in place of 267."""
    passed_on, inside, own = (tf.fill([2, 2], float(i)) for i in range(3))
    counts = []

    @tf.function(jit_compile=True)
    def made():
        inner = xla_gradients.all_at_once([passed_on + 1.0, inside + 1.0], 1, [])
        outer = xla_gradients.all_at_once([inner[0] * 2.0, inner[1], own + 1.0], 1, [])
        graph = tf.compat.v1.get_default_graph()
        barriers = [op for op in graph.get_operations() if op.type == "XlaOptimizationBarrier"]
        counts.append([[t.op.type for t in op.inputs] for op in barriers])
        return outer

    for tensor, value in zip(made(), (2.0, 2.0, 3.0)):
        np.testing.assert_array_equal(tensor, np.full([2, 2], value))
    assert counts == [[["AddV2", "AddV2"], ["Mul", "AddV2"]]]


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


def kept_between():
    sizes = [7, 8, 9, 10, 11]
    return keras.Sequential([keras.Input((6,)), *(L.Dense(n, "tanh", name=f"dense_{n}") for n in sizes)])


@pytest.mark.parametrize("frozen", [False, True])
def test_replays_wait_for_kernels_that_were_kept_and_train(frozen):
    """XLA put those off to the end of a ResNet's step. What is frozen has none, and must not get one."""
    model = fresh(kept_between)
    model.get_layer("dense_9").trainable = not frozen
    pieces = [(0, 2, "recompute"), (2, 3, "keep"), (3, 5, "recompute")]
    tfgc.enable(model, Plan.from_pieces(keras_graph.read(model), pieces, strategy="by hand"))

    @tf.function(jit_compile=True)
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(x, training=True) ** 2)
        return tape.gradient(loss, model.trainable_variables)

    operations = step.get_concrete_function(noise(4, 6)).graph.get_operations()
    products = [op for op in operations if op.type == "MatMul"]
    (kernel,) = [op for op in products if op.outputs[0].shape == (8, 9)]
    replays = [op for op in products if op.name.startswith("replay") and "gradient_tape" not in op.name]
    (replayed,) = [op for op in replays if op.outputs[0].shape == (4, 7)]
    before, stack = set(), [replayed]
    while stack:
        op = stack.pop()
        before.add(op)
        stack += (tensor.op for tensor in op.inputs if tensor.op not in before)
    assert (kernel in before) is not frozen


def test_what_an_outer_tape_records_has_no_zeros_in_place_of_none():
    """A tape takes all that one operation makes for used."""
    model = fresh(lambda: keras.Sequential([keras.Input((4,)), L.Dense(4), L.Dense(1)]))
    tfgc.enable(model, Plan.from_pieces(keras_graph.read(model), [(0, 2, "recompute")], strategy="by hand"))
    weights = [v.value for v in model.trainable_variables]
    missing = []

    @tf.function(jit_compile=True)
    def step(x):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = tf.reduce_sum(model(x, training=True))
            first, *_ = inner.gradient(y, [x, *weights])
            penalty = tf.reduce_sum(first**2)
        found = outer.gradient(penalty, [x, *weights])
        missing.append([gradient is None for gradient in found])
        return [gradient for gradient in found if gradient is not None]

    step(noise(3, 4))
    assert missing == [[True, False, True, False, True]]


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
    tfgc.enable(model, Plan.from_pieces(keras_graph.read(model), [(0, 3, "recompute"), (3, 4, "keep")], strategy="x"))

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
