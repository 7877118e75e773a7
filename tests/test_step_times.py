"""What each node takes in a training step, by TensorFlow's profiler."""

import contextlib
import dataclasses

import keras
import pytest
import tensorflow as tf
from equality import fresh

import tfgc
from tfgc import Plan, Segment, TfgcError
from tfgc._costs import node_costs, step_times
from tfgc._framework import profiler
from tfgc._framework.profiler import Interval
from tfgc._tracing.keras_graph import Program

L = keras.layers


@tf.custom_gradient
def doubled(x):
    return tf.sin(x), lambda upstream: tf.linalg.matmul(upstream, tf.eye(16)) * 2.0


class InALoop(L.Layer):
    def call(self, x):
        return tf.while_loop(
            lambda i, x: i < 3, lambda i, x: (i + 1, tf.tanh(tf.linalg.matmul(x, tf.eye(16)))), (0, x)
        )[1]


def many_kinds():
    """Normalizations, a custom gradient, a loop, a sum of branches, integers, and a node that gets no gradient."""
    inputs = keras.Input((6,), dtype="int32", name="tokens"), keras.Input((6, 16), name="features")
    x = L.Add()([L.Embedding(9, 16)(inputs[0]), inputs[1]])
    y = L.BatchNormalization()(L.Dense(16, activation="silu")(x))
    y = InALoop()(L.Lambda(doubled)(y))
    x = L.LayerNormalization()(L.Add()([x, L.Dropout(0.5)(y)]))
    x = L.MultiHeadAttention(2, 8)(x, x)
    return keras.Model(inputs, [L.Dense(1)(x), keras.ops.argmax(x, axis=-1)])


def read(model, batch=4):
    program = Program(model, batch)
    return program, node_costs.annotate(program)


def test_operations_that_run_at_the_same_time_share_it():
    second = 10**12
    runs = [("a", 0, 4), ("b", 1, 3), ("b", 2, 4), ("a", 5, 6)]
    seconds = profiler.shared(Interval(name, begin * second, end * second) for name, begin, end in runs)
    assert seconds == {"a": pytest.approx(1 + 1 / 2 + 1 / 3 + 1 / 2 + 1), "b": pytest.approx(1 / 2 + 2 / 3 + 1 / 2)}
    assert sum(seconds.values()) == pytest.approx(5)
    assert profiler.shared([]) == {}


def test_every_operation_of_a_step_is_charged_to_a_node():
    program, graph = read(fresh(many_kinds))
    step = step_times._Step(program, graph)
    step.run()
    runs = profiler.operations_run(step.run)
    assert any("while" in run.name.lower() for run in runs)
    seconds = profiler.shared(runs)
    charged = step.charged(seconds)
    assert sum(node.forward + node.backward for node in charged) == pytest.approx(sum(seconds.values()))
    for node, cost, times in zip(graph.nodes, graph.costs, charged):
        assert 0 <= times.selective <= times.forward, node.name
        assert times.backward == 0 or cost.differentiable, node.name
    by_name = dict(zip((node.name for node in graph.nodes), charged))
    for name in ("dense", "lambda", "in_a_loop", "batch_normalization"):
        assert by_name[name].forward > 0, name
        assert by_name[name].backward > 0, name


def normalized():
    x = inputs = keras.Input((32, 32, 64))
    for _ in range(3):
        x = L.BatchNormalization()(L.Conv2D(64, 1, use_bias=False)(x))
    return keras.Model(inputs, L.GlobalAveragePooling2D()(x))


@pytest.mark.parametrize("is_split", [False, True])
def test_a_replay_costs_what_a_forward_pass_costs(is_split):
    model = normalized()
    _, graph = read(model, 8)
    names = [node.name for node in graph.nodes]
    inner = Plan((Segment((names[0],)), Segment((names[1],))), "x", ()) if is_split else None
    plan = tfgc.plan(model, 8, strategy="uniform", segments=1)
    segments = Segment(tuple(names[:2]), inner=inner), Segment(tuple(names[2:]), mode="keep")
    plan = dataclasses.replace(plan, segments=segments)
    found = tfgc.estimate(model, 8, plan)
    again = sum(cost.flops * (found.runs[name] - 1) for name, cost in zip(names[:2], graph.costs))
    assert found.work - found.plain_work == again > 0


def test_another_profile_is_an_error_that_says_so(tmp_path):
    with contextlib.ExitStack() as stack:
        tf.profiler.experimental.start(str(tmp_path))
        stack.callback(tf.profiler.experimental.stop)
        with pytest.raises(TfgcError, match="while another profile is being taken: stop that one first"):
            profiler.operations_run(lambda: None)


def test_on_a_gpu_kernels_count_and_not_their_launches(monkeypatch):
    space = profiler.xplane_pb2.XSpace()
    for plane_name, event, stat, picoseconds in [
        ("/host:CPU", "dense/MatMul:MatMul", None, 1000),
        ("/host:CPU", "tokens/Cast:Cast", None, 500),
        ("/host:CPU", "ExecutorState::Process", None, 9000),
        ("/device:GPU:0", "ampere_sgemm_128x64", "dense/MatMul:MatMul", 70000),
    ]:
        plane = next((p for p in space.planes if p.name == plane_name), None) or space.planes.add(name=plane_name)
        number = len(plane.event_metadata) + 1
        plane.event_metadata[number].name = event
        line = plane.lines.add(timestamp_ns=2)
        made = line.events.add(metadata_id=number, offset_ps=3000, duration_ps=picoseconds)
        if stat:
            plane.stat_metadata[1].name, plane.stat_metadata[2].name = "tf_op", stat
            made.stats.add(metadata_id=1, ref_value=2)
    monkeypatch.setattr(tf.profiler.experimental, "start", lambda folder, options: folders.append(folder))
    monkeypatch.setattr(tf.profiler.experimental, "stop", lambda: None)
    folders = []

    def step():
        with open(f"{folders[0]}/vm.xplane.pb", "wb") as file:
            file.write(space.SerializeToString())

    runs = profiler.operations_run(step)
    assert sorted(run[:4] for run in runs) == [
        ("dense/MatMul", 5000, 75000, "MatMul"),
        ("tokens/Cast", 5000, 5500, "Cast"),
    ]
