"""Segments that are alike are traced once, and train as before; others get separate traces."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from equality import MODES, assert_equal, fresh, in_turn, mostly, noise, train
from replays import second_order

import tfgc
from tfgc._framework import graph_copies
from tfgc._tracing import keras_graph
from tfgc._training import shared_traces
from tfgc._training.segment_boundaries import boundary_tensors

L = keras.layers
X, Y = noise(16, 8), [noise(16, 4, seed=2)]


def blocks(n=4, change=lambda i: {}):
    """Equal blocks with everything that a twin must keep apart: weights, statistics, seeds and losses."""
    x = inputs = keras.Input((8,))
    for i in range(n):
        y = L.Dense(8, activation="relu", activity_regularizer="l2", **change(i))(x)
        y = L.Dropout(0.4)(L.BatchNormalization(momentum=0.5)(y))
        x = L.Add()([x, L.Dense(8)(y)])
    return keras.Model(inputs, L.Dense(4)(x))


def by_block(model, size=5):
    """One segment a block."""
    names = [node.name for node in keras_graph.read(model).nodes]
    ends = [names[i - 1] for i in range(size, len(names), size)]
    return tfgc.plan(model, strategy="manual", keep=ends)


def kinds(model, plan):
    """How many different signatures the segments have, those that share no trace counted one by one."""
    program = keras_graph.Program(model)
    found = []
    for segment in plan.segments:
        needed, produced, _ = boundary_tensors(program.graph, segment.nodes)
        signature = shared_traces.signature(program, segment, segment.nodes, needed, produced)
        found.append(object() if signature is None else signature)
    return len(set(found))


def count_traces(monkeypatch, model, graph=False, kind=L.Dense, x=X):
    """How often the Python code of a kind of layer runs in the first step."""
    calls, original = [], kind.call
    monkeypatch.setattr(kind, "call", lambda self, *a, **k: calls.append(self.name) or original(self, *a, **k))

    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(x, training=True) ** 2) + sum(model.losses)
        return tape.gradient(loss, [v.value for v in model.trainable_variables])

    (tf.function(step) if graph else step)()
    return len(calls)


def test_blocks_that_are_alike_are_traced_once(monkeypatch):
    models = {}
    for n in (2, 4):
        models[n] = fresh(lambda n=n: blocks(n))
        tfgc.enable(models[n], by_block(models[n]))
    with monkeypatch.context() as patch:
        few = count_traces(patch, models[2])
    assert few > 0
    with monkeypatch.context() as patch:
        assert count_traces(patch, models[4]) == few


@pytest.mark.parametrize("n", [2, 4])
def test_in_a_graph_python_runs_once_for_both_runs_of_all_blocks(monkeypatch, n):
    model = fresh(lambda: blocks(n))
    tfgc.enable(model, by_block(model))
    # Two layers in the first block, and the last layer.
    assert count_traces(monkeypatch, model, graph=True) == 3


def attention_blocks(n):
    """Blocks with a layer that notes in an attribute how it was called: one that has not run yet looks different."""
    x = inputs = keras.Input((4, 8))
    for _ in range(n):
        y = L.MultiHeadAttention(2, 4, dropout=0.3)(x, x)
        x = L.Add()([x, L.Dense(8, activation="relu")(y)])
    return keras.Model(inputs, L.Dense(4)(x))


@pytest.mark.parametrize("graph", mostly(False, modes=[False, True]))
def test_twins_of_layers_that_note_their_calls_are_traced_once(monkeypatch, graph):
    traces = {}
    for n in (2, 4):
        model = fresh(lambda n=n: attention_blocks(n))
        tfgc.enable(model, by_block(model, 3))
        with monkeypatch.context() as patch:
            traces[n] = count_traces(patch, model, graph, L.MultiHeadAttention, noise(2, 4, 8))
    assert 0 < traces[2] == traces[4]


@pytest.mark.gate
def test_a_twin_changed_before_its_first_call_stands_apart():
    x, y = noise(16, 4, 8), [noise(16, 4, 4, seed=2)]

    def build():
        model = attention_blocks(4)
        model.get_layer("multi_head_attention_2")._dropout_layer.rate = 0.8
        return model

    plain, model = fresh(build), fresh(lambda: attention_blocks(4))
    tfgc.enable(model, by_block(model, 3))
    model.get_layer("multi_head_attention_2")._dropout_layer.rate = 0.8
    assert_equal(train(plain, x, y, graph=True), train(model, x, y, graph=True), exact=False)


@pytest.mark.parametrize(("way", "activation"), in_turn(["in one graph", "of a function", "eager"], ["tanh", "silu"]))
def test_gradients_of_gradients_of_twins(activation, way):
    def build():
        return keras.Sequential([keras.Input((8,)), *(L.Dense(8, activation) for _ in range(4)), L.Dense(4)])

    plain, ours = fresh(build), fresh(build)
    tfgc.enable(ours, by_block(ours, 2))
    for a, b in zip(second_order(plain, X, way), second_order(ours, X, way), strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_what_prints_or_asserts_is_kept(tmp_path):
    """Nothing reads what a printing layer's operation makes; it runs all the same."""

    class Printing(L.Layer):
        def call(self, x):
            tf.print("ran", self.name, output_stream=f"file://{tmp_path}/lines")
            return x * 2.0

    model = keras.Sequential([keras.Input((8,)), L.Dense(8), Printing(name="loud"), L.Dense(8), L.Dense(4)])
    tfgc.enable(model, by_block(model, 3))
    step = tf.function(lambda: model(X, training=True))
    step()
    assert (tmp_path / "lines").read_text().splitlines() == ["ran loud"]


@pytest.mark.parametrize("tensors", [[0, 0, 0, 1], [0, 0, 0, 1, 1], [0, 1, 1, 1, 2, 2]])
def test_what_waits_several_times_for_one_operation_can_be_copied(tensors):
    """Outputs that are added up have one upstream gradient in common, and small constants of a replay wait for all."""
    with tf.Graph().as_default() as graph:
        given = [tf.compat.v1.placeholder(tf.float32, ()) for _ in tensors]
        made = tf.identity(tf.constant(2.0))
        part = graph_copies.Part(graph, given, [made], [(made.op.inputs[0].op, [x.op for x in given])])

    @tf.function
    def copied():
        others = [tf.random.stateless_uniform((), (1, i)) for i in range(3)]
        (copy,) = part.copy([others[i] for i in tensors], "copy")
        return copy

    assert copied() == 2.0


@pytest.mark.parametrize("mode", mostly("graph", modes=["compiled", "graph"]))
def test_twins_train_as_the_plain_model(mode):
    plain = train(fresh(blocks), X, Y, graph=True)
    model = fresh(blocks)
    plan = by_block(model)
    assert kinds(model, plan) == 2
    tfgc.enable(model, plan)
    assert_equal(plain, train(model, X, Y, graph=mode == "graph"), exact=False)


@pytest.mark.parametrize("graph", mostly(True, modes=[False, True]))
def test_frozen_twins_stand_apart(graph):
    def build():
        model = blocks()
        model.get_layer("dense_2").trainable = False
        return model

    plain = train(fresh(build), X, Y, graph=True)
    model = fresh(build)
    tfgc.enable(model, by_block(model))
    assert_equal(plain, train(model, X, Y, graph=graph), exact=False)


class Own(L.Layer):
    def call(self, x):
        return x * 2.0


FUNCTIONS = [lambda x: x * 1.0, lambda x: x * 1.1, lambda x: x * 1.2, lambda x: x * 1.3]
CONSTANTS = [np.full(2000, i, "float32") for i in range(4)]


def with_constants():
    x = inputs = keras.Input((2000,))
    for constant in CONSTANTS:
        x = keras.ops.add(L.Dense(2000, name=f"d{constant[0]:.0f}")(x), constant)
    return keras.Model(inputs, x)


@pytest.mark.parametrize(
    "change",
    [
        lambda i: {"activation": FUNCTIONS[i]},
        lambda i: {"activation": ["relu", "tanh", "gelu", "elu"][i]},
        lambda i: {"use_bias": bool(i % 2), "dtype": ["float32", "float64"][i // 2]},
    ],
    ids=["functions of the user's", "activations", "options"],
)
def test_what_differs_is_no_twin(change):
    def build():
        x = inputs = keras.Input((8,))
        for i in range(4):
            x = L.Dense(8, **change(i))(x)
            x = L.Dense(8)(x)
        return keras.Model(inputs, L.Dense(4)(x))

    model = fresh(build)
    plan = by_block(model, 2)
    assert kinds(model, plan) == len(plan.segments) == 5
    y = [tf.cast(Y[0], model.output.dtype)]
    plain = train(fresh(build), X, y, graph=True)
    tfgc.enable(model, plan)
    assert_equal(plain, train(model, X, y), exact=False)


def test_custom_layers_constants_and_changed_attributes_share_no_trace():
    def build(middle):
        layers = [layer for i in range(3) for layer in (L.Dense(8), middle(i))]
        return keras.Sequential([keras.Input((8,)), *layers, L.Dense(4)])

    own = build(lambda i: Own())
    assert kinds(own, by_block(own, 2)) == 4
    changed = build(lambda i: L.Dropout(0.5))
    assert kinds(changed, by_block(changed, 2)) == 2
    changed.layers[1].rate = 0.1
    assert kinds(changed, by_block(changed, 2)) == 3
    patched = build(lambda i: L.ReLU())
    patched.layers[3].call = lambda x: x
    assert kinds(patched, by_block(patched, 2)) == 3
    constants = with_constants()
    assert kinds(constants, by_block(constants, 2)) == 4
    shared = L.Dense(8)
    inputs = keras.Input((8,))
    x = L.Dense(8)(shared(shared(inputs)))
    x = L.Dense(8)(L.Dense(8)(L.Dense(8)(x)))
    model = keras.Model(inputs, x)
    assert kinds(model, by_block(model, 3)) == 2


def gelu(x):
    """Named as Keras's own, which writes it into the configuration by that name alone."""
    return x * 1.5


def towers(make):
    def build():
        x = inputs = keras.Input((8,))
        for i in range(3):
            x = L.Dense(8)(make(i)(x))
        return keras.Model(inputs, L.Dense(4)(x))

    return build


def adapted(i):
    layer = L.Normalization()
    layer.adapt(np.random.default_rng(i).normal(i, i + 1, (64, 8)))
    return layer


def patched(i):
    layer = L.ReLU()
    layer.call = [lambda x: x * 1.0, lambda x: x * 2.0, lambda x: x * 3.0][i]
    return layer


ALIKE = {
    "adapted": adapted,
    "named as Keras's": lambda i: L.Dense(8, activation=[gelu, "gelu", gelu][i]),
    "patched": patched,
}


@pytest.mark.parametrize("make", ALIKE.values(), ids=ALIKE)
def test_what_only_looks_alike_is_no_twin(make):
    expected = train(fresh(towers(make)), X, Y, graph=True, lr=0.01)
    model = fresh(towers(make))
    plan = by_block(model, 2)
    assert kinds(model, plan) == len(plan.segments)
    tfgc.enable(model, plan)
    assert_equal(expected, train(model, X, Y, lr=0.01), exact=False)


@pytest.mark.parametrize("mode", MODES)
def test_a_twin_that_was_changed_after_enabling_gets_another_trace(mode):
    build = towers(lambda i: L.Dense(8, name=f"wide_{i}"))

    def changed(enable):
        model = fresh(build)
        if enable:
            tfgc.enable(model, by_block(model, 2))
        model.get_layer("wide_2").enable_lora(4)
        model.get_layer("wide_1").activation = keras.activations.tanh
        keras.utils.set_random_seed(5)
        for v in model.get_layer("wide_2").trainable_variables:
            v.assign(keras.random.normal(v.shape, seed=3) * 0.1)
        return model

    expected = train(changed(False), X, Y, graph=True, lr=0.01)
    ours = train(changed(True), X, Y, graph=mode == "graph", lr=0.01)
    assert any("lora" in name for name in expected[0].gradients)
    assert_equal(expected, ours, exact=mode == "eager")
