"""Checkpoints in the host's memory: the same gradients, and the copies that the plan says.

On two logical CPU devices, of which the second one trains. Both have one memory, so that where a tensor is says its
device alone, and what a plan saves on an accelerator is not measured here.
"""

import collections
import dataclasses
import functools
import gc
import itertools
import json

import keras
import memory
import numpy as np
import pytest
import tensorflow as tf
from equality import fresh, in_turn, noise
from random_graphs import random_graph

import tfgc
from tfgc import Node, Ref, Spec, strategies
from tfgc._framework import host_memory
from tfgc._simulate import outlooks, simulator

L = keras.layers
BATCH, WIDTH, DEPTH = 256, 64, 6
SIZE = BATCH * WIDTH * 4  # bytes of what a layer makes
HOST, DEVICE = "CPU:0", "CPU:1"


def chain():
    layers = [L.Dense(WIDTH, activation="softplus", name=f"dense_{i}") for i in range(DEPTH)]
    return keras.Sequential([keras.Input((WIDTH,)), *layers])


def drawing():
    """Statistics, random numbers, and a tensor that two segments read."""
    inputs = keras.Input((WIDTH,))
    x = L.Dense(WIDTH, name="first")(inputs)
    y = L.Dropout(0.3, seed=3)(L.BatchNormalization()(x))
    y = L.Dense(WIDTH, activation="gelu")(y)
    return keras.Model(inputs, L.Dense(4)(L.Add()([x, L.Dense(WIDTH)(y)])))


def masked():
    """The loss reads the mask that Keras attached to the model's result."""
    inputs = keras.Input((WIDTH,))
    x = L.Masking()(L.Reshape((WIDTH // 4, 4))(L.ReLU()(inputs)))
    for _ in range(4):
        x = L.Dense(4, activation="tanh")(x)
    return keras.Model(inputs, x)


def two_devices():
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)


def offloaded(graph, *, segments=3):
    """A strategy that stores the inputs of all that it recomputes on the host."""
    plan = strategies.apply("uniform", graph, segments=segments)
    return dataclasses.replace(plan, segments=tuple(map(on_host, plan.segments)))


def by_layer(graph):
    """The same, cut behind each layer of a chain."""
    cuts = [i + 1 for i, node in enumerate(graph.nodes[:-1]) if node.kind == "Softplus"]
    plan = tfgc.Plan.from_cuts(graph, cuts, strategy="by layer")
    return dataclasses.replace(plan, segments=tuple(map(on_host, plan.segments)))


def on_host(segment):
    return dataclasses.replace(segment, offload=segment.mode == "recompute")


def step_of(model, mode, device=DEVICE):
    def step(x):
        with tf.device(device), tf.GradientTape() as tape:
            y = model(x, training=True)
            loss = keras.losses.MeanSquaredError()(tf.zeros_like(y), y)
        return [loss, *tape.gradient(loss, [v.value for v in model.trainable_variables])]

    return tf.function(step) if mode == "graph" else step


def counted(function):
    """Call a function; return how many copies it made to each device, and their bytes."""
    copies, moved = collections.Counter(), host_memory._moved

    def noting(tensor, device):
        if tensor.device != device:  # A second one on the host waits and copies nothing.
            copies[device[-5:]] += 1
            copies[device[-5:] + " bytes"] += tensor.shape.num_elements() * tensor.dtype.size
        return moved(tensor, device)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host_memory, "_moved", noting)
        return function(), copies


def results(build, mode, strategy):
    two_devices()
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    return trained(build, mode, DEVICE, strategy)


def trained(build, mode, device, strategy):
    """What a step gives and leaves behind, plain and with checkpoints on the host, and the copies that this made."""
    made = []
    for plain in (True, False):
        model = fresh(build)
        if not plain:
            tfgc.enable(model, strategy=strategy, verbose=0)
        step, x = step_of(model, "graph" if plain else mode, device), noise(BATCH, WIDTH)
        found, copies = counted(functools.partial(step, x))
        step(x)
        made.append([*(t.numpy() for t in found), *(v.numpy() for v in model.variables)])
    return *made, copies


@pytest.mark.gate
@pytest.mark.parametrize(("build", "mode"), in_turn([chain, drawing, masked]))
def test_gradients_and_states_are_those_of_plain_training(build, mode):
    plain, ours, copies = memory.alone(results, build, mode, offloaded)
    assert copies
    for a, b in zip(plain, ours, strict=True):
        np.testing.assert_array_equal(b, a)


@pytest.mark.gate
@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_each_checkpoint_goes_to_the_host_once_and_comes_back_once(mode):
    """Of six segments the first reads the batch, which the caller holds, and the last is kept."""
    _, _, copies = memory.alone(results, chain, mode, by_layer)
    assert copies == {HOST: 4, HOST + " bytes": 4 * SIZE, DEVICE: 4, DEVICE + " bytes": 4 * SIZE}


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["eager", "compiled", "graph"])
@pytest.mark.parametrize("build", [chain, drawing, masked])
def test_gradients_and_states_on_a_gpu_are_those_of_plain_training_there(build, mode):
    plain, ours, copies = trained(build, mode, "GPU:0", offloaded)
    assert copies["GPU:0"] == copies[HOST] > 0
    for a, b in zip(plain, ours, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-5 * np.abs(a).max())


def gpu_peak(strategy, mode):
    """Layers of 64 MB each, so that their weights and workspaces are small beside them."""
    model = keras.Sequential([keras.Input((64,)), *(L.Dense(64, activation="softplus") for _ in range(12))])
    tfgc.enable(model, strategy=strategy, segments=12)
    return memory.peak(step_of(model, mode, "GPU:0"), tf.ones((2**18, 64)), device="GPU:0")


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["compiled", "graph"])
def test_on_a_gpu_the_host_holds_what_the_device_does_not(mode):
    held, offloading = (memory.alone(gpu_peak, strategy, mode) for strategy in ("uniform", offloaded))
    assert offloading < held - 5 * 2**26


@pytest.mark.gpu
def test_the_link_of_a_gpu_is_measured():
    """The slowest in use, PCI Express 3 with four lanes, copies 4 GB a second; none copies a terabyte."""
    assert 1e9 < host_memory.bandwidth("/device:GPU:0") < 1e12


def alive_between(depth, strategy):
    """How many tensors of a layer's size the device holds after the forward pass, and in each backward pass."""
    gc.freeze()  # What is there already is not counted, nor looked at.
    two_devices()
    found = []

    def count():
        gc.collect()
        alive = [x for x in gc.get_objects() if isinstance(x, tf.Tensor) and not tf.is_symbolic_tensor(x)]
        found.append(sum(x.shape == (BATCH, WIDTH) and x.backing_device.endswith(DEVICE) for x in alive))

    @tf.custom_gradient
    def watched(y):
        def backward(upstream):
            with tf.control_dependencies([tf.numpy_function(count, [], [])]):
                return tf.identity(upstream)

        return tf.identity(y), backward

    class Watched(L.Dense):
        def call(self, x):
            return watched(super().call(x))

    model = keras.Sequential([keras.Input((WIDTH,)), *(Watched(WIDTH, activation="softplus") for _ in range(depth))])
    tfgc.enable(model, strategy=strategy, segments=depth, verbose=0)
    with tf.device(DEVICE):
        x = tf.zeros((BATCH, WIDTH))
        for _ in range(2):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(x, training=True))
            found.clear()
            count()
            tape.gradient(loss, [v.value for v in model.trainable_variables])
    return found


@pytest.mark.gate
def test_what_the_device_holds_does_not_grow_with_the_depth():
    (short, *short_back), (deep, *deep_back) = (memory.alone(alive_between, depth, offloaded) for depth in (9, 14))
    assert deep == short
    assert max(deep_back) == max(short_back)
    (short, *short_back), (deep, *deep_back) = (memory.alone(alive_between, depth, "uniform") for depth in (9, 14))
    assert deep == short + 5
    assert max(deep_back) == max(short_back) + 5


def partitions(mode):
    two_devices()
    from tensorflow.python.eager import context

    model, x = fresh(chain), noise(BATCH, WIDTH)
    tfgc.enable(model, strategy=by_layer, verbose=0)
    step = step_of(model, "graph")
    if mode == "fit":
        model.compile("sgd", "mse")

        @tf.function
        def step(x):
            return model.train_step((x, tf.zeros_like(x)))

    context.context().enable_run_metadata()
    with tf.device(DEVICE):
        step(x), step(x)
    graphs = context.context().export_run_metadata().function_graphs[-1].partition_graphs
    return [[(n.name, n.op, n.device[-5:], list(n.input)) for n in graph.node] for graph in graphs]


@pytest.mark.gate
@pytest.mark.parametrize(("mode", "count"), [("fit", 5), ("graph", 4)])
def test_in_a_graph_nothing_is_sent_back_before_it_is_needed(mode, count):
    """TensorFlow's optimizer left the copies alone, and each waits on the host for a gradient.

    The step of `fit` has the loss behind the last layer, which is recomputed, too.
    """
    graphs = memory.alone(partitions, mode)
    nodes = {name: (op, device, inputs) for graph in graphs for name, op, device, inputs in graph}
    on_host = [inputs for op, device, inputs in nodes.values() if op == "Snapshot" and device == HOST]
    waiting = [inputs for inputs in on_host if any(name.startswith("^") for name in inputs)]
    assert (len(on_host), len(waiting)) == (2 * count, count)
    back = [inputs for op, device, inputs in nodes.values() if op == "Snapshot" and device == DEVICE]
    assert [nodes[inputs[0]][0] for inputs in back] == ["_Recv"] * count


# Predictions


def graph(depth):
    """Nodes that make a megabyte each of the megabyte that they read."""
    nodes, last = [], Ref("x")
    for i in range(depth):
        nodes.append(Node(f"n{i}", (last,), (Spec((None, 250)),)))
        last = Ref(f"n{i}")
    return tfgc.Graph(tuple(nodes), {"x": Spec((None, 250))}, (last,), 1000)


def predicted(depth, offload=True, link=None):
    """Each node is a segment; the first reads the batch, and the last is kept."""
    made = graph(depth)
    plan = tfgc.Plan.from_cuts(made, range(1, depth), strategy="by hand")
    segments = map(on_host, plan.segments) if offload else plan.segments
    return simulator.predict(made, dataclasses.replace(plan, segments=tuple(segments), link=link))


def test_the_predicted_peak_does_not_grow_with_the_depth_and_the_host_holds_the_rest():
    short, deep = predicted(6), predicted(12)
    assert deep.peak_bytes == short.peak_bytes
    assert (short.host_bytes, deep.host_bytes) == (4e6, 10e6)
    assert predicted(12, offload=False).peak_bytes == predicted(6, offload=False).peak_bytes + 6e6
    assert predicted(6, offload=False).host_bytes == 0


def test_copies_that_hide_behind_work_cost_none():
    """A node's forward pass takes 250,000 operations, in which a link of 4 bytes per operation copies a megabyte."""
    without = predicted(6)
    assert predicted(6, link=4.0).work == without.work
    assert predicted(6, link=4.0).peak_bytes == without.peak_bytes


def test_a_slow_link_holds_buffers_and_lets_replays_wait():
    """By hand, in millions of operations, with a megabyte copied in one.

    Nodes 1 to 4 have their inputs on the host at 1.25, 2.25, 3.25 and 4.25. The loss is there at 1.5. The input of
    node 4 is back at 5.25, and is needed at 2, after the backward pass of node 5. Those of nodes 3, 2 and 1 come one
    later each, while a replay and backward pass take 0.75.
    """
    found, without = predicted(6, link=1.0), predicted(6)
    assert found.work - without.work == pytest.approx(3.25e6 + 3 * 0.25e6)
    assert found.peak_bytes > without.peak_bytes


def test_a_plan_file_has_what_is_stored_on_the_host():
    made = graph(4)
    plan = tfgc.Plan.from_cuts(made, [1, 2, 3], strategy="by hand")
    plan = dataclasses.replace(plan, segments=tuple(map(on_host, plan.segments)), link=2.5)
    plan = outlooks.with_outlook(made, plan)
    assert [s.host_bytes for s in plan.segments] == [0, 1e6, 1e6, None]
    assert tfgc.Plan.from_json(plan.to_json()) == plan
    assert json.loads(plan.to_json())["version"] == 8
    plain = dataclasses.replace(tfgc.Plan.from_cuts(made, [2], strategy="by hand"), link=2.5)
    assert json.loads(plain.to_json())["version"] == 8
    assert "2 MB of inputs wait in host memory" in plan.explain()


def test_on_one_device_nothing_is_copied():
    model = fresh(chain)
    tfgc.enable(model, strategy=offloaded, segments=DEPTH, verbose=0)
    x = noise(BATCH, WIDTH)

    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x, training=True) ** 2)
        return tape.gradient(loss, model.trainable_variables[0].value)

    with pytest.warns(tfgc.NothingSavedWarning, match="no accelerator here: nothing is copied"):
        _, copies = counted(step)
    assert not copies


@pytest.mark.filterwarnings("ignore::tfgc.NothingSavedWarning")
def test_xla_is_refused():
    model = fresh(chain)
    tfgc.enable(model, strategy=offloaded, segments=DEPTH, verbose=0)
    step = tf.function(step_of(model, "eager"), jit_compile=True)
    with pytest.raises(tfgc.UnsupportedModelError, match="jit_compile"):
        step(noise(BATCH, WIDTH))


# Strategies


def every_plan(made, link):
    """Every way to cut a graph, with each segment kept, recomputed, or recomputed from the host."""
    n = len(made)
    for bounds in itertools.chain.from_iterable(itertools.combinations(range(1, n), k) for k in range(n)):
        pieces = list(itertools.pairwise([0, *bounds, n]))
        for modes in itertools.product(("keep", "recompute", "host"), repeat=len(pieces)):
            named = [(*piece, mode if mode == "keep" else "recompute") for piece, mode in zip(pieces, modes)]
            plan = tfgc.Plan.from_pieces(made, named, strategy="all")
            offload = [dataclasses.replace(s, offload=mode == "host") for s, mode in zip(plan.segments, modes)]
            yield dataclasses.replace(plan, segments=tuple(offload), link=link)


@pytest.mark.parametrize("host_budget", [None, 800])
@pytest.mark.parametrize("seed", range(4))
def test_hybrid_finds_the_least_work_at_every_peak_that_a_plan_has(seed, host_budget):
    made = random_graph(seed, 5)
    found = [simulator.predict(made, plan) for plan in every_plan(made, None)]
    found = [p for p in found if host_budget is None or p.host_bytes <= host_budget]
    options = {} if host_budget is None else {"host_budget": host_budget}
    for peak in {p.peak_bytes for p in found}:
        ours = simulator.predict(made, strategies.apply("hybrid", made, budget=peak, **options))
        assert ours.peak_bytes <= peak
        assert ours.host_bytes <= (host_budget or ours.host_bytes)
        assert ours.work == pytest.approx(min(p.work for p in found if p.peak_bytes <= peak))


def test_budget_uses_the_host_only_where_it_may():
    made = graph(12)
    with pytest.raises(tfgc.InfeasibleBudgetError) as refused:
        strategies.apply("budget", made, budget=0)
    works = []
    for peak in range(refused.value.least, strategies.apply("keep_all", made).outlook.peak_bytes + 1, 10**6):
        plain, both = (strategies.apply("budget", made, budget=peak, **more) for more in ({}, {"host_budget": "3MB"}))
        assert not any(segment.offload for segment in plain.segments)
        assert simulator.predict(made, both).host_bytes <= 3e6
        works.append([simulator.predict(made, plan).work for plan in (both, plain)])
    assert all(ours <= theirs for ours, theirs in works)
    assert any(ours < theirs for ours, theirs in works)


def links():
    """What naming each device as the one that has the link gives."""
    two_devices()
    model = keras.Sequential([keras.Input((WIDTH,)), *(L.Dense(WIDTH, "gelu") for _ in range(6))])
    found = {}
    for device in ("CPU:1", "cpu:0", "GPU:0"):
        try:
            plan = tfgc.plan(
                model, BATCH, strategy="hybrid", budget="95%", host_budget="1GB", bandwidth=device, speed=1e9
            )
            found[device] = plan.options["bandwidth"]
        except tfgc.OptionError as error:
            found[device] = str(error)
    return found


def test_the_link_of_a_device_is_measured():
    found = memory.alone(links)
    assert found["CPU:1"] == "CPU:1"  # measured where the plan is made
    assert "its memory is the host's" in found["cpu:0"]
    assert "no such device (it has: CPU:0, CPU:1)" in found["GPU:0"]


def test_offload_stores_only_what_no_replay_waits_for():
    made = graph(12)
    free = strategies.apply("offload", made)
    slow = strategies.apply("offload", made, bandwidth=1, speed=1.0)
    assert free.outlook.peak_bytes < slow.outlook.peak_bytes
    for plan in (free, slow):
        without = dataclasses.replace(plan, link=None)
        assert simulator.predict(made, plan).work <= 1.01 * simulator.predict(made, without).work


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bandwidth": "12GB"}, "speed= in flops a second"),
        ({"speed": 1e12}, "give bandwidth="),
        ({"bandwidth": "fast", "speed": 1e12}, "bandwidth='fast'"),
        ({"bandwidth": "12GB", "speed": -1}, "speed=-1"),
        ({"host_budget": 0}, "host_budget=0"),
        ({"host_budget": "1kB"}, "the smallest checkpoint, 'n[0-2]', has 1 MB"),
    ],
    ids=["no speed", "no bandwidth", "bandwidth", "speed", "host budget", "below a checkpoint"],
)
def test_a_link_that_says_nothing_is_refused(options, message):
    with pytest.raises(tfgc.OptionError, match=message):
        strategies.apply("offload", graph(4), **options)


def test_budget_refuses_a_link_without_a_host():
    with pytest.raises(tfgc.OptionError, match="host_budget="):
        strategies.apply("budget", graph(4), budget=10**7, bandwidth="12GB", speed=1e12)


def test_a_plan_that_is_made_ahead_says_what_waits_on_the_host():
    model, batch = fresh(chain), (noise(BATCH, WIDTH), noise(BATCH, WIDTH))
    model.compile("sgd", "mse")
    for options, most in (({}, 5 * SIZE), ({"host_budget": 3 * SIZE}, 3 * SIZE)):
        plan = tfgc.plan(model, example=batch, strategy="offload", **options)
        assert sum(segment.host_bytes or 0 for segment in plan.segments) == most
        plan = tfgc.Plan.from_json(plan.to_json())
        found = tfgc.estimate(model, plan=plan, example=batch)
        assert (found.host_bytes, found.needed_bytes) == (most, plan.outlook.needed_bytes)


def after_fit(strategy):
    two_devices()
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    model, x = fresh(drawing), noise(4 * BATCH, WIDTH)
    if strategy is not None:
        tfgc.enable(model, strategy=strategy, verbose=0)
    model.compile("adam", "mse")
    with tf.device(DEVICE):
        model.fit(x, x[:, :4], batch_size=BATCH, shuffle=False, verbose=0)
    waiting = () if strategy is None else tfgc.status(model).plans[0].plan.segments
    return [v.numpy() for v in model.variables], sum(segment.host_bytes or 0 for segment in waiting)


@pytest.mark.gate
def test_fit_gives_the_bits_of_plain_training():
    (plain, _), (ours, waiting) = (memory.alone(after_fit, strategy) for strategy in (None, offloaded))
    assert waiting
    for a, b in zip(plain, ours, strict=True):
        np.testing.assert_array_equal(b, a)
