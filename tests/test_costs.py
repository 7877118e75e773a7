"""What a layer keeps and computes, read from its gradient graph, against shapes and formulas written by hand."""

import collections
import dataclasses
import gc
import statistics
import weakref

import keras
import memory
import numpy as np
import pytest
import tensorflow as tf
from equality import fresh, noise
from models import nested, shared

import tfgc
from tfgc import NotReplayableWarning
from tfgc._core.buffers import Buffers
from tfgc._core.graph import Ref
from tfgc._costs import node_costs
from tfgc._framework import keras_models
from tfgc._tracing import keras_graph

L = keras.layers
F32, F16, I32, BOOL = 4, 2, 4, 1


@pytest.fixture(autouse=True)
def nothing_read_yet(monkeypatch):
    monkeypatch.setattr(node_costs, "_READ", {})


def graph_of(model, batch=4):
    return node_costs.annotate(keras_graph.Program(model, batch))


def costs_of(*layers, shape=(6,), batch=4, dtype="float32"):
    """The costs of layers in a row, in their order; the first gets no gradient for its input."""
    model = keras.Sequential([keras.Input(shape, dtype=dtype), *layers])
    return [node.cost for node in graph_of(model, batch).nodes]


def behind_dense(layer, shape=(6,), batch=4):
    """The cost of a layer whose input gets a gradient, and which of input and output it keeps."""
    graph = graph_of(keras.Sequential([keras.Input(shape), L.Dense(shape[-1]), layer]), batch)
    before, node = graph.nodes
    names = {Ref(before.name): "input", Ref(node.name): "output"}
    return node.cost, {names[ref] for ref in node.cost.saved_tensors}


@pytest.mark.parametrize(
    ("layer", "shape", "kept", "internal"),
    [
        (lambda: L.Dense(5), (6,), {"input"}, []),
        (lambda: L.Dense(5, activation="relu"), (6,), {"input", "output"}, []),
        (lambda: L.Dense(5, activation="softmax"), (6,), {"input", "output"}, []),
        # A convolution's gradients read its sizes, which nothing has to be kept or run again for.
        (lambda: L.Conv2D(5, 3), (8, 8, 3), {"input"}, []),
        (lambda: L.Conv2D(5, 3, activation="relu"), (8, 8, 3), {"input", "output"}, []),
        # Mean, variance and scale of each channel.
        (lambda: L.BatchNormalization(), (8, 8, 3), {"input"}, [3 * F32] * 3),
        # The input less its mean, and three figures a row.
        (lambda: L.LayerNormalization(), (6,), {"input"}, [4 * 6 * F32] + [4 * F32] * 3),
        (lambda: L.ReLU(), (6,), {"output"}, []),
        (lambda: L.Softmax(), (6,), {"output"}, []),
        (lambda: L.Activation("sigmoid"), (6,), {"output"}, []),
        (lambda: L.Reshape((2, 3)), (6,), set(), []),
        (lambda: L.Flatten(), (2, 3), set(), []),
        (lambda: L.ZeroPadding2D(), (4, 4, 3), set(), []),
        # The mask depends on no input, and is kept.
        (lambda: L.Dropout(0.5), (6,), set(), [4 * 6 * BOOL]),
    ],
)
def test_what_layers_keep(layer, shape, kept, internal):
    cost, found = behind_dense(layer(), shape)
    assert found == kept
    assert sorted(cost.saved_internal_bytes) == sorted(internal)
    assert len(cost.differentiable_inputs) == 1
    assert cost.obstacle is None


def test_a_convolution_is_not_run_again_for_its_sizes():
    layers = [L.Conv2D(3, 3), L.BatchNormalization(), L.ReLU(), L.Conv2D(3, 3), L.Dense(2)]
    graph = graph_of(keras.Sequential([keras.Input((8, 8, 3)), *layers]))
    # Up to and with itself nobody reads what the second convolution makes.
    assert Buffers.of(graph).first_replay_end[3] > 4


def test_max_pooling_keeps_both_sides():
    pooling = costs_of(L.Conv2D(3, 1), L.MaxPooling2D(), shape=(8, 8, 3))[1]
    assert len(pooling.saved_tensors) == 2


def test_gelu_keeps_more_than_relu():
    gelu, kept = behind_dense(L.Dense(5, activation="gelu"))
    assert kept == {"input"}
    assert sum(gelu.saved_internal_bytes) >= 2 * 4 * 5 * F32


def merged(layer):
    x = keras.Input((6,))
    a = L.Dense(6)(x)
    b = L.Dense(6)(a)
    return graph_of(keras.Model(x, layer([a, b]))).nodes[-1]


@pytest.mark.parametrize("layer", [L.Add, L.Average, L.Concatenate])
def test_merging_keeps_nothing(layer):
    cost = merged(layer()).cost
    assert (cost.saved_tensors, cost.saved_internal_bytes) == ((), ())
    assert len(cost.differentiable_inputs) == 2


def test_an_addition_hands_its_gradient_on_and_writes_over_an_input():
    node = merged(L.Add())
    assert node.cost.passthrough_inputs == node.cost.differentiable_inputs == node.inputs
    assert node.cost.overwrites in node.inputs
    assert node.cost.backward_trace == ()
    joined = merged(L.Concatenate()).cost
    assert joined.passthrough_inputs == ()
    assert joined.overwrites is None


def test_a_product_keeps_both_factors():
    node = merged(L.Multiply())
    assert node.cost.saved_tensors == node.inputs


@pytest.mark.parametrize("layer", [lambda: L.Reshape((2, 3)), lambda: L.Flatten()])
def test_renaming_is_a_view(layer):
    cost, _ = behind_dense(layer())
    assert cost.aliases == cost.differentiable_inputs == cost.passthrough_inputs
    assert (cost.forward_trace, cost.forward_saving_trace, cost.backward_trace, cost.flops) == ((), (), (), 0)


def test_a_relu_writes_over_its_input():
    cost, _ = behind_dense(L.ReLU())
    assert cost.overwrites == cost.differentiable_inputs[0]
    assert cost.forward_trace == cost.forward_saving_trace == (4 * 6 * F32,)


def test_embedding_has_sparse_gradients_and_keeps_no_activation():
    first, second = costs_of(L.Embedding(100, 8), L.Dense(2), shape=(5,), dtype="int32")
    assert (first.saved_tensors, first.differentiable_inputs) == ((), ())
    # A row for each token, its number, and the shape of the table.
    assert first.gradient_bytes == 4 * 5 * 8 * F32 + 4 * 5 * I32 + 2 * I32
    assert len(second.differentiable_inputs) == 1


def test_attention_keeps_its_weights_once():
    x = keras.Input((7, 8))
    y = L.Dense(8)(x)
    cost = graph_of(keras.Model(x, L.MultiHeadAttention(2, 4)(y, y), name="transformer")).nodes[-1].cost
    projected, weights = 4 * 7 * 2 * 4 * F32, 4 * 2 * 7 * 7 * F32
    assert collections.Counter(cost.saved_internal_bytes) == {projected: 4, weights: 1}  # query, key, value, attended
    assert len(cost.saved_tensors) == 1


def attention_maps(name, calls):
    """Maps of attention without dropout that a plain step is predicted, and measured, to hold at its peak."""
    X, one = tf.zeros((16, 256, 16)), 16 * 256 * 256 * F32
    if calls:
        model = Attending(name=name)
        model(keras.KerasTensor(X.shape))
    else:
        inputs = keras.Input((256, 16))
        model = keras.Model(inputs, Attending().call(inputs), name=name)
    model.compile("sgd", "mse", jit_compile=False)
    predicted = tfgc.estimate(model, example=(X, X)).activation_bytes
    peak = memory.peak(tf.function(lambda: model.train_step((X, X))), steps=9, of=statistics.median)
    return predicted / one, peak / one


class Attending(keras.Model):
    def __init__(self, size=16, **kwargs):
        super().__init__(**kwargs)
        self.attentions = [L.MultiHeadAttention(1, size) for _ in range(4)]

    def call(self, x):
        for attention in self.attentions:
            x = x + attention(x, x)
        return x


@pytest.mark.gate
@pytest.mark.parametrize("calls", [False, True])
def test_a_map_of_attention_is_stored_twice_if_the_name_of_the_model_comes_before_gradients(calls):
    """TensorFlow's optimizer makes a number times the map in the forward pass."""
    names = ["transformer", "functional"]
    (predicted, measured), (more_predicted, more_measured) = (
        memory.alone(attention_maps, name, calls) for name in names
    )
    assert more_predicted == predicted + 4
    assert more_measured > measured + 1.5  # Both in pieces of memory that are up to twice as large.


@pytest.mark.parametrize(
    ("layer", "each_trip"),
    [
        (L.LSTM, 7),  # three gates, the candidate, the cell and its tanh, the output before
        (L.GRU, 6),  # two gates, the candidate, its recurrent part, the output before, and 1 - a gate
    ],
)
def test_loops_keep_what_every_trip_adds(layer, each_trip):
    steps, features, units, batch = 9, 3, 5, 4
    cost = costs_of(layer(units, return_sequences=True), shape=(steps, features), batch=batch)[0]
    found = collections.Counter(cost.saved_internal_bytes)
    assert found[steps * batch * units * F32] == each_trip
    assert found[steps * batch * features * F32] == 1
    both = costs_of(L.Bidirectional(layer(units)), shape=(steps, features), batch=batch)[0]
    assert collections.Counter(both.saved_internal_bytes)[steps * batch * units * F32] == 2 * each_trip


class Running(L.Layer):
    """A layer that runs a function of tensors."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def call(self, x):
        return self.function(x)


def until(start, limit, step=1, compare=tf.less, **options):
    def loop(x):
        condition = lambda i, x: compare(i, limit)  # noqa: E731
        return tf.while_loop(condition, lambda i, x: (i + step, tf.tanh(x)), [tf.constant(start), x], **options)[1]

    return loop


def inside_a_loop(function):
    return lambda x: tf.while_loop(lambda i, _: i < 3, lambda i, x: (i + 1, function(x)), [tf.constant(0), x])[1]


def written(size, **options):
    """A loop that writes what it makes of each trip into an array."""

    def loop(x):
        def trip(i, x, array):
            x = tf.tanh(x)
            return i + 1, x, array.write(i, x)

        array = tf.TensorArray(tf.float32, size, element_shape=x.shape, **options)
        return tf.reduce_sum(tf.while_loop(lambda i, *_: i < 9, trip, [tf.constant(0), x, array])[2].stack(), 0)

    return loop


TRIPS = {
    "a counter": (until(0, 12), 12),
    "a counter up to the limit": (until(1, 12, compare=tf.less_equal), 12),
    "a counter in steps": (until(1, 12, 3), 4),
    "at most": (until(0, 100, maximum_iterations=7), 7),
    "an array": (written(9), 9),
    "an array that grows": (written(0, dynamic_size=True), 9),
    "an array that grows from one": (written(1, dynamic_size=True), 9),
    "a loop in a loop": (inside_a_loop(until(0, 12)), 3 * 12),
    "loops in loops": (inside_a_loop(inside_a_loop(until(0, 12))), 3 * 3 * 12),
    "a branch in a loop": (
        inside_a_loop(lambda x: tf.cond(tf.reduce_sum(x) > 0, lambda: tf.sin(tf.tanh(x)), lambda: x)),
        3,
    ),
    "a loop in a branch": (lambda x: tf.cond(tf.reduce_sum(x) > 0, lambda: until(0, 12)(x), lambda: x), 12),
    "Keras's loop": (lambda x: keras.ops.fori_loop(0, 9, lambda i, x: keras.ops.tanh(x), x), 9),
    "a limit that moves": (
        lambda x: tf.while_loop(
            lambda i, n, x: i < n, lambda i, n, x: (i + 1, n - 1, tf.tanh(x)), [tf.constant(0), tf.constant(9), x]
        )[2],
        1,
    ),
    "as the data says": (lambda x: tf.while_loop(lambda x: tf.reduce_max(x) > 0.1, lambda x: (tf.tanh(x),), [x])[0], 1),
}


@pytest.mark.parametrize("name", TRIPS)
def test_loops_keep_what_each_trip_adds_by_their_counters(name):
    loop, trips = TRIPS[name]
    cost = costs_of(L.Dense(6), Running(loop))[1]
    assert max(cost.saved_internal_bytes, default=0) == trips * 4 * 6 * F32


def chain(x, function, times):
    for _ in range(times):
        x = function(x)
    return x


def recurring(trips):
    """A loop whose gradient reads what a trip begins with and what it ends with, which is what the next begins with."""

    def loop(x):
        trip = lambda i, y: (i + 1, tf.tanh(tf.sin(y) + x))  # noqa: E731
        return tf.while_loop(lambda i, _: i < trips, trip, [tf.constant(0), x])[1]

    return loop


def test_loops_keep_what_one_trip_hands_to_the_next_once():
    cost = costs_of(L.Dense(6), Running(recurring(12)))[1]
    assert sum(size for size in cost.saved_internal_bytes if size > I32) == 12 * 4 * 6 * F32


LARGE_LOOPS = {
    "flat": recurring(30),
    "nested": inside_a_loop(recurring(10)),
}


def training_through_loops(name):
    layers = [L.Dense(1), L.Dense(65536), *(Running(LARGE_LOOPS[name]) for _ in range(2)), L.Dense(1)]
    model = keras.Sequential([keras.Input((8,)), *layers])
    model.compile("sgd", "mse", jit_compile=False)
    x, y = tf.ones((8, 8)), tf.ones((8, 1))
    predicted = [tfgc.estimate(model, **how).activation_bytes for how in ({"batch_size": 8}, {"example": (x, y)})]
    return memory.peak(model.train_on_batch, x, y), predicted


@pytest.mark.gate
@pytest.mark.parametrize("name", LARGE_LOOPS)
def test_training_through_loops_needs_what_is_predicted(name):
    measured, predicted = memory.alone(training_through_loops, name)
    assert predicted == pytest.approx([measured, measured], rel=0.15)


BRANCHES = {
    "cond": (lambda x, here: tf.cond(here, lambda: chain(x, tf.sin, 5), lambda: x * 2), 4, set()),
    "two that store": (
        lambda x, here: tf.cond(here, lambda: chain(x, tf.sin, 3), lambda: chain(x, tf.sin, 5)),
        4,
        set(),
    ),
    "switch_case": (
        lambda x, here: tf.switch_case(
            tf.cast(here, tf.int32), [lambda: x * 2, lambda: x, lambda: chain(x, tf.sin, 5)]
        ),
        4,
        set(),
    ),
    "with what it returns": (lambda x, here: tf.cond(here, lambda: chain(x, tf.tanh, 5), lambda: x * 2), 4, {"output"}),
    "in another": (
        lambda x, here: tf.cond(here, lambda: tf.cond(here, lambda: chain(x, tf.sin, 5), lambda: x), lambda: x * 2),
        4,
        set(),
    ),
}


def training_through_branches():
    def branch(x):
        return tf.cond(tf.reduce_sum(x) > -1e9, lambda: chain(x, tf.sin, 8), lambda: x * 2)

    layers = [L.Dense(1), L.Dense(4096), *(Running(branch) for _ in range(4)), L.Dense(1)]
    model = keras.Sequential([keras.Input((4096,)), *layers])
    model.compile("sgd", "mse", jit_compile=False)
    x, y = tf.ones((128, 4096)), tf.ones((128, 1))
    predicted = [tfgc.estimate(model, **how).activation_bytes for how in ({"batch_size": 128}, {"example": (x, y)})]
    return memory.peak(model.train_on_batch, x, y), predicted


@pytest.mark.gate
def test_training_through_branches_needs_what_is_predicted():
    measured, predicted = memory.alone(training_through_branches)
    assert predicted == pytest.approx([measured, measured], rel=0.05)


@pytest.mark.parametrize("name", BRANCHES)
def test_branches_keep_what_the_heaviest_one_stores(name):
    branch, stored, kept = BRANCHES[name]
    cost, found = behind_dense(Running(lambda x: branch(x, tf.reduce_sum(x) > 0)))
    large = [size for size in cost.saved_internal_bytes if size > 4]  # What chooses the branch is kept, too.
    assert sum(large) == stored * 4 * 6 * F32
    assert found == {"input", *kept}


def test_mixed_precision_counts_halves_and_casts():
    keras.config.set_dtype_policy("mixed_float16")
    first, second, norm = costs_of(L.Dense(5), L.Dense(3), L.BatchNormalization())
    # The kernel cast to float16 is kept for the input's gradient, the input cast for the kernel's.
    assert first.saved_internal_bytes == (4 * 6 * F16,)
    assert second.saved_internal_bytes == (5 * 3 * F16,)
    assert sum(second.forward_trace) == 4 * 3 * F16
    assert first.gradient_bytes == (6 * 5 + 5) * F32
    # It computes in float32: its input, cast, is what it keeps.
    assert norm.saved_tensors == ()
    assert 4 * 3 * F32 in norm.saved_internal_bytes


def test_the_first_layer_gives_its_input_no_gradient():
    first, second = costs_of(L.Dense(6), L.Dense(6))
    assert (first.differentiable_inputs, len(second.differentiable_inputs)) == ((), 1)
    assert first.backward_flops < second.backward_flops
    assert (first.flops, first.gradient_bytes) == (second.flops, second.gradient_bytes)


def test_frozen_layers():
    def model(last_trainable):
        layers = [L.Dense(6), L.BatchNormalization(), L.Dense(6), L.ReLU(), L.Dense(6)]
        built = keras.Sequential([keras.Input((6,)), *layers])
        for layer in layers[: -1 if last_trainable else None]:
            layer.trainable = False
        return graph_of(built).nodes

    for node in model(False):
        assert not node.cost.differentiable
        assert node.cost.gradient_bytes == 0
    *frozen, last = model(True)
    assert not any(node.cost.differentiable for node in frozen)
    assert last.cost.differentiable_inputs == ()
    assert last.cost.gradient_bytes == (6 * 6 + 6) * F32
    # Behind a layer that trains, a frozen one gives a gradient to its input and none to its weights.
    first, frozen = L.Dense(6), L.Dense(6)
    frozen.trainable = False
    cost = costs_of(first, frozen)[1]
    assert (len(cost.differentiable_inputs), cost.gradient_bytes, cost.saved_tensors) == (1, 0, ())


@pytest.mark.parametrize(
    ("layer", "shape", "forward"),
    [
        # Two for each product, and one for each bias; batch 4.
        (lambda: L.Dense(5), (6,), 2 * 4 * 6 * 5 + 4 * 5),
        (lambda: L.Conv2D(5, 3, padding="same"), (8, 8, 3), 2 * 4 * 8 * 8 * 5 * (3 * 3 * 3) + 4 * 8 * 8 * 5),
        (lambda: L.Conv2D(5, 3, strides=2, use_bias=False), (9, 9, 3), 2 * 4 * 4 * 4 * 5 * (3 * 3 * 3)),
        (lambda: L.DepthwiseConv2D(3, use_bias=False), (8, 8, 3), 2 * 4 * 6 * 6 * 3 * (3 * 3)),
        # Of groups, which Keras has XLA compile: a function inside of the call.
        (lambda: L.Conv2D(8, 3, groups=4, use_bias=False), (8, 8, 8), 2 * 4 * 6 * 6 * 8 * (3 * 3 * 2)),
        (lambda: L.EinsumDense("abc,cd->abd", (7, 5)), (7, 6), 2 * 4 * 7 * 6 * 5),
        (lambda: L.EinsumDense("...x,xy->...y", 5), (7, 3, 6), 2 * 4 * 7 * 3 * 6 * 5),
        (lambda: L.ReLU(), (6,), 4 * 6),
    ],
)
def test_flops(layer, shape, forward):
    cost, _ = behind_dense(layer(), shape)
    assert cost.flops == pytest.approx(forward, rel=0.01)


def test_a_convolution_whose_kernel_has_an_open_size_counts_no_flops():
    class Blur(L.Layer):
        """As Keras's RandomElasticTransform blurs: by a kernel whose size is known when it runs."""

        def build(self, shape):
            self.size = self.add_weight(shape=(), dtype="int32", initializer="ones", trainable=False)

        def call(self, x):
            kernel = tf.ones(tf.stack([self.size.value, self.size.value, x.shape[-1], 1]))
            return tf.nn.depthwise_conv2d(tf.tanh(x), kernel, [1, 1, 1, 1], "SAME")

        def compute_output_shape(self, shape):
            return shape

    cost, _ = behind_dense(Blur(), (8, 8, 3))
    assert cost.obstacle is None
    assert 0 < cost.flops < 2 * 4 * 8 * 8 * 3  # of the tanh alone


def test_backward_products_cost_twice_the_forward_ones():
    for layer, shape in [(L.Dense(50), (60,)), (L.Conv2D(5, 3, padding="same"), (8, 8, 3))]:
        cost, _ = behind_dense(layer, shape)
        assert cost.backward_flops == pytest.approx(2 * cost.flops, rel=0.05)


def test_matrix_products_of_ops():
    x = keras.Input((7, 8))
    y = L.Dense(8)(x)
    cost = graph_of(keras.Model(x, keras.ops.matmul(y, keras.ops.transpose(y, (0, 2, 1))))).nodes[-1].cost
    assert cost.flops == 2 * 4 * 7 * 7 * 8
    assert cost.backward_flops == pytest.approx(2 * cost.flops, rel=0.05)


def test_shared_layers_and_nested_models_have_a_cost_for_each_call():
    nodes = {node.name: node.cost for node in graph_of(fresh(shared)).nodes}
    assert nodes["dense"].gradient_bytes == nodes["dense:1"].gradient_bytes == (6 * 6 + 6) * F32
    assert (nodes["dense"].differentiable_inputs, len(nodes["dense:1"].differentiable_inputs)) == ((), 1)
    nodes = {node.name: node.cost for node in graph_of(fresh(nested)).nodes}
    assert (
        nodes["inner/block/dropout"].saved_internal_bytes
        == nodes["inner:1/block/dropout"].saved_internal_bytes
        == (4 * 6 * BOOL,)
    )


def test_each_distinct_call_is_traced_once(monkeypatch):
    read, calls = node_costs._read, []
    monkeypatch.setattr(node_costs, "_read", lambda *given: calls.append(given[1].name) or read(*given))
    blocks = [layer for _ in range(10) for layer in (L.Dense(6), L.BatchNormalization(), L.ReLU())]
    model = keras.Sequential([keras.Input((6,)), *blocks, L.Dense(3)])
    graph = graph_of(model)
    assert calls == ["dense", "batch_normalization", "re_lu", "dense_1", "dense_10"]
    assert graph_of(model) == graph
    assert len(calls) == 5
    costs_of(L.Dense(6, activation="tanh"), L.Dense(6, name="another"))
    assert len(calls) == 6
    graph_of(model, batch=8)
    assert len(calls) == 11


def test_costs_grow_with_the_batch():
    layers = [L.Conv2D(4, 3), L.BatchNormalization(), L.ReLU(), L.Dropout(0.5), L.Flatten(), L.Dense(3)]
    model = keras.Sequential([keras.Input((8, 8, 3)), *layers])
    small, large = (graph_of(model, batch) for batch in (64, 128))
    for a, b in zip(small.nodes, large.nodes):
        assert b.cost.saved_tensors == a.cost.saved_tensors
        assert b.cost.gradient_bytes == a.cost.gradient_bytes
        assert b.cost.flops == pytest.approx(2 * a.cost.flops, rel=0.01)
        for trace in ("forward_trace", "forward_saving_trace", "backward_trace"):
            most = [max([0, *getattr(cost, trace)]) for cost in (a.cost, b.cost)]
            assert most[1] == 2 * most[0]


def peak_of_reading_costs(batch):
    layers = [L.Conv2D(8, 3), L.Dropout(0.5), L.Flatten(), L.Dense(3)]
    model = keras.Sequential([keras.Input((64, 64, 3)), *layers])
    before = memory.info("current")
    graph_of(model, batch)
    return memory.info("peak") - before


def test_nothing_of_the_batch_is_allocated():
    assert memory.alone(peak_of_reading_costs, 10_000) < 10**6


class Raw(keras.Layer):
    def call(self, x):
        return x + tf.random.normal(tf.shape(x))


class Penalty(keras.Layer):
    def call(self, x):
        self.add_loss(keras.ops.sum(keras.ops.square(x)))
        return x * 2.0


class Eager(keras.Layer):
    def call(self, x):
        if not tf.executing_eagerly():
            raise RuntimeError("only by daylight")
        return x

    def compute_output_shape(self, shape):
        return shape


@pytest.mark.parametrize(("layer", "why"), [(Raw, "RandomStandardNormal"), (Eager, "cannot be traced.*Eager.call")])
def test_layers_that_cannot_be_run_twice_are_kept_and_named(layer, why):
    model = keras.Sequential([keras.Input((6,)), L.Dense(6), L.Dense(6), layer(name="odd"), L.Dense(6), L.Dense(6)])
    with pytest.warns(NotReplayableWarning, match=f"'odd'.*{why}"):
        plan = tfgc.plan(model, 4, strategy="uniform", segments=5)
    assert [s.mode for s in plan.segments if "odd" in s.nodes] == ["keep"]
    assert any(s.mode == "recompute" for s in plan.segments)


def test_what_a_layer_adds_to_the_loss_counts():
    cost, kept = behind_dense(Penalty())
    assert kept == {"input"}
    assert cost.differentiable
    assert cost.obstacle is None
    assert behind_dense(L.Dense(5, activity_regularizer="l2"))[1] == {"input", "output"}


def test_a_layer_that_writes_its_own_weights():
    """The normalised kernel is written before it is read; its gradient goes to the kernel all the same."""
    cost, kept = behind_dense(L.SpectralNormalization(L.Dense(5)))
    assert cost.obstacle is None
    assert kept == {"input"}
    assert cost.gradient_bytes == (6 * 5 + 5) * F32


def test_costs_do_not_keep_a_model_alive():
    def build():
        model = keras.Sequential([keras.Input((6,)), L.Dense(6), Penalty(), L.Lambda(lambda x: x * 2), L.Dense(6)])
        graph_of(model)
        return [weakref.ref(layer) for layer in model.layers]

    layers = build()
    keras.utils.clear_session()
    gc.collect()
    assert [layer() for layer in layers] == [None] * 4
    assert len(node_costs._READ) == 2


def test_custom_layers_are_read_one_by_one():
    """Their configurations can be equal where what they do is not."""

    class Doubled(keras.Layer):
        def __init__(self, times):
            super().__init__()
            self.times = times

        def call(self, x):
            return keras.ops.concatenate([x] * self.times)

    x = keras.Input((6,))
    y = L.Dense(6)(x)
    nodes = graph_of(keras.Model(x, [Doubled(2)(y), Doubled(3)(y)])).nodes
    assert {node.name: sum(node.cost.forward_trace) for node in nodes} == {
        "dense": 4 * 6 * F32,
        "doubled": 2 * 4 * 6 * F32,
        "doubled_1": 3 * 4 * 6 * F32,
    }
    assert not any("Doubled" in str(key) for key in node_costs._READ)


def test_activations_of_the_same_name_are_read_one_by_one():
    """Keras writes the name of a function into a layer's configuration, not what it does."""

    def activation(times):
        def repeated(x):
            return keras.ops.concatenate([x] * times)

        return repeated

    x = keras.Input((6,))
    nodes = graph_of(keras.Model(x, [L.Dense(5, activation=activation(times))(x) for times in (2, 3)])).nodes
    assert {sum(node.cost.forward_trace) for node in nodes} == {2 * 4 * 5 * F32, 3 * 4 * 5 * F32}


@pytest.mark.parametrize("function", [keras.ops.tanh, keras.random.shuffle], ids=["tanh", "shuffle"])
def test_a_lambda_is_not_taken_for_keras_own(function):
    """It may draw from Keras's global generator, so that its order counts."""
    assert not keras_models.is_keras_own(L.Lambda(function))
    assert keras_models.is_keras_own(L.Activation("tanh"))


def test_unknown_sizes_are_asked_for():
    model = keras.Sequential([keras.Input((None, 4)), L.Dense(3)])
    with pytest.raises(tfgc.OptionError, match="input_shapes"):
        graph_of(model)


# Buffers of powers of two, which the allocator of a fresh process does not round.
KEPT = [
    (lambda: L.Conv2D(16, 3, padding="same", activation="relu"), (16, 16, 16)),
    (lambda: L.BatchNormalization(), (16, 16, 16)),
    (lambda: L.LayerNormalization(), (16, 64)),
    (lambda: L.ReLU(), (4096,)),
    (lambda: L.Activation("silu"), (4096,)),
    (lambda: L.Dropout(0.5), (4096,)),
    (lambda: L.DepthwiseConv2D(3, padding="same"), (16, 16, 16)),
    (lambda: L.Flatten(), (64, 64)),
]


def kept_and_predicted(number):
    """Bytes that a tape holds after a compiled call of a layer, and what its cost says; small buffers left out."""
    layer, shape = KEPT[number][0](), KEPT[number][1]
    batch, counted = 256, 2**18
    model = keras.Sequential([keras.Input(shape), L.PReLU(shared_axes=list(range(1, len(shape) + 1))), layer])
    graph = graph_of(model, batch)
    cost = graph.nodes[-1].cost
    made = 0 if cost.aliases != (None,) else graph.node_bytes[-1]
    call = tf.function(lambda x: layer(x, training=True), autograph=False)
    x = tf.random.normal((batch, *shape))
    found = []
    for _ in range(3):
        gc.collect()
        before = memory.info("current")
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = call(x)
        found.append(memory.info("current") - before)
        tape.gradient(y, [x, *layer.trainable_variables])
        del tape, y
    return min(found), made + sum(count for count in cost.saved_internal_bytes if count >= counted)


@pytest.mark.parametrize("number", range(len(KEPT)))
def test_what_a_compiled_layer_keeps_is_what_the_allocator_says(number):
    kept, predicted = memory.alone(kept_and_predicted, number)
    assert kept == predicted


def held_while_differentiated():
    """The peak of a compiled eager step whose first segment returns 2 MiB, and the one predicted."""
    layers = [L.Conv2D(16, 3, padding="same", activation="tanh") for _ in range(4)]
    model = keras.Sequential([keras.Input((32, 32, 16)), *layers, L.MaxPool2D(8), L.Conv2D(1, 3)])
    cut = tfgc.plan(model, 32, strategy=lambda graph: tfgc.Plan.from_cuts(graph, [4], strategy="by hand"))
    plan = dataclasses.replace(cut, segments=tuple(dataclasses.replace(s, mode="recompute") for s in cut.segments))
    tfgc.enable(model, plan)
    x = noise(32, 32, 32, 16)

    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x, training=True) ** 2)
        tape.gradient(loss, [v.value for v in model.trainable_variables])

    return memory.peak(step), tfgc.estimate(model, 32, plan, mode="compiled").activation_bytes


def test_what_a_recomputed_segment_returned_is_gone_when_it_runs_backward():
    """Held, it would add 4 MiB: with it TensorFlow cannot work in place. A gradient that waits may add 2."""
    peak, predicted = memory.alone(held_while_differentiated)
    assert peak < predicted + 3 * 2**20


def grouped_convolution():
    """The peak of a compiled step with a convolution in groups, which Keras has XLA compile, and the one predicted."""
    layers = [L.Conv2D(192, 7, padding="same", groups=192), L.Conv2D(192, 7, padding="same", groups=192)]
    model = keras.Sequential([keras.Input((8, 8, 192)), *layers])
    model.compile("sgd", "mse")
    x = noise(4, 8, 8, 192)

    @tf.function
    def step():
        loss = tf.reduce_mean(model(x, training=True) ** 2)
        return tf.gradients(loss, [v.value for v in model.trainable_variables])

    return memory.peak(step), tfgc.estimate(model, 4, example=(x, x)).activation_bytes


class Tinted(L.Layer):
    """XLA compiles an operation that has no gradient, in a layer that needs none of it."""

    @tf.function(jit_compile=True)
    def tinted(self, x):
        return tf.image.adjust_hue(x, 0.1)

    def call(self, x):
        return x + tf.stop_gradient(self.tinted(x))


def test_a_function_for_xla_without_a_gradient_is_no_obstacle():
    model = keras.Sequential([keras.Input((4, 4, 3)), L.Conv2D(3, 1), Tinted()])
    assert not any(node.cost.obstacle for node in graph_of(model).nodes)


class Compiled(L.Layer):
    """A layer that has XLA compile what it computes, with a state and a loss of its own."""

    def __init__(self):
        super().__init__()
        self.norm, self.dense = L.BatchNormalization(), L.Dense(6)

    @tf.function(jit_compile=True)
    def call(self, x):
        y = self.dense(self.norm(x, training=True))
        self.add_loss(tf.reduce_mean(y**2))
        return self.norm(y, training=True)


@pytest.mark.gate
def test_a_layer_that_has_xla_compile_what_it_computes_is_recomputed_as_any_other():
    model = keras.Sequential([keras.Input((6,)), L.Dense(6), Compiled(), L.Dense(6)])
    assert not any(node.cost.obstacle for node in graph_of(model).nodes)
    model.compile("sgd", "mse")
    assert tfgc.verify(model, None, (noise(4, 6), noise(4, 6, seed=1)), modes="graph", steps=1)
    outer = Outer(model)
    outer.compile("sgd", "mse")
    x = noise(4, 6)
    assert tfgc.verify(outer, None, (x, x), modes="graph", steps=1)


class Outer(keras.Model):
    """A model without a graph, which is planned by calls."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def call(self, x):
        return self.inner(x)


@pytest.mark.gate
def test_what_xla_takes_for_a_convolution_in_groups_counts():
    measured, predicted = memory.alone(grouped_convolution)
    assert predicted > 2 * 7 * 7 * 192 * 192 * F32  # two buffers as for a convolution without groups
    assert predicted <= measured < 1.15 * predicted  # TensorFlow gives a piece of memory that is a little larger


def test_large_constants_that_print_alike_are_told_apart():
    one, other = (np.zeros((64, 64, 1), "float32") for _ in range(2))
    one[10:20], other[40:50] = 1, 1

    def peak(first, second):
        x = keras.Input((64, 64, 4))
        a = keras.layers.Conv2D(4, 3, padding="same")(x)
        joined = keras.layers.Concatenate()([a * first, a * second])
        return tfgc.estimate(keras.Model(x, keras.layers.Conv2D(1, 3)(joined)), 8).peak_bytes

    assert peak(one, one) < peak(one, other) == peak(one, 2 * other)
