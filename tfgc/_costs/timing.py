"""Time each distinct node of a model on this device, and remember the times.

Times are kept in the user's cache folder (`TFGC_CACHE` names another), one file for each model
fingerprint, batch, device and TensorFlow version. A node is timed on random
tensors of the full batch, forward alone and forward with gradients, each compiled; its state
is not touched. Times are medians after a warm-up.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import statistics
import time
from collections.abc import Callable
from typing import Any, cast

import platformdirs
import rich.console
import rich.progress
import tensorflow as tf

from tfgc import _files
from tfgc._core.graph import Graph, Node, Ref, Spec
from tfgc._core.plan import describe
from tfgc._costs import node_costs
from tfgc._errors import TfgcError
from tfgc._pure import functional, side_effects, tensor_packing
from tfgc._tracing.keras_graph import Program

_RUNS = 5
_ENOUGH_SECONDS = 1.0


def timed(program: Program, graph: Graph) -> Graph:
    """Return `graph` with measured seconds for both passes of each node."""
    file = _file(graph)
    known = _load(file)
    keys = [_name(node_costs.key(program, graph, node), node) for node in graph.nodes]
    missing = {key: node for key, node in zip(keys, graph.nodes) if key not in known}
    console = rich.console.Console(stderr=True)
    for key in rich.progress.track(list(missing), "timing nodes", console=console, disable=not missing):
        known[key] = _time(program, graph, missing[key])
        _store(file, known)
    return dataclasses.replace(
        graph,
        nodes=tuple(
            dataclasses.replace(
                node, cost=dataclasses.replace(cost, seconds=known[key][0], backward_seconds=known[key][1])
            )
            for node, cost, key in zip(graph.nodes, graph.costs, keys)
        ),
    )


def _name(key: Any, node: Node) -> str:
    return hashlib.sha256(repr(key if key is not None else node.name).encode()).hexdigest()[:16]


def _file(graph: Graph) -> pathlib.Path:
    device = "GPU" if tf.config.list_physical_devices("GPU") else f"CPU-{os.cpu_count()}"
    sizes = [node.describe() + str(node.outputs) for node in graph.nodes]
    fingerprint = hashlib.sha256("\n".join([*describe(graph), *sizes]).encode()).hexdigest()[:16]
    folder = os.environ.get("TFGC_CACHE") or platformdirs.user_cache_dir("tfgc")
    return pathlib.Path(folder) / f"times-{fingerprint}-{device}-{tf.__version__}.json"


def _load(file: pathlib.Path) -> dict[str, tuple[float, float]]:
    try:
        return {key: tuple(seconds) for key, seconds in json.loads(file.read_text()).items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


def _store(file: pathlib.Path, known: dict[str, tuple[float, float]]) -> None:
    # A folder that cannot be written costs the next call its time, not this one its plan.
    with contextlib.suppress(OSError, TfgcError):
        file.parent.mkdir(parents=True, exist_ok=True)
        _files.write(file, json.dumps(known))


def _time(program: Program, graph: Graph, node: Node) -> tuple[float, float]:
    """Seconds of one node forward, and of its gradients."""
    refs = tuple(dict.fromkeys(node.inputs))
    inputs = [_filled(graph.specs[ref]) for ref in refs]

    def call(*tensors: tf.Tensor) -> list[Any]:
        table = dict(zip(refs, tensors))
        program.run([node.name], table, training=True)
        return [table[Ref(node.name, i)] for i in range(len(node.outputs))]

    packing = tensor_packing.Packing((tuple(inputs), {}))
    packing.take_tensors()
    reads = side_effects.discover(call, packing).reads
    values = [tf.convert_to_tensor(v.value) for v in reads]
    wanted = [i for i, ref in enumerate(refs) if ref in graph.cost(node).differentiable_inputs]
    trained = [i for i, v in enumerate(reads) if v.trainable]

    def forward(tensors: list[tf.Tensor], values: list[tf.Tensor]) -> list[tf.Tensor]:
        return functional.run(call, packing, tensors, reads, values).tensors

    def both(tensors: list[tf.Tensor], values: list[tf.Tensor]) -> list[Any]:
        sources = [tensors[i] for i in wanted] + [values[i] for i in trained]
        with tf.GradientTape() as tape:
            tape.watch(sources)
            made = [t for t in forward(tensors, values) if t.dtype.is_floating]
        return tape.gradient(made, sources, output_gradients=[tf.ones_like(t) for t in made])

    seconds = _median(forward, inputs, values)
    if not graph.cost(node).differentiable or not (wanted or trained):
        return seconds, 0.0
    return seconds, max(0.0, _median(both, inputs, values) - seconds)


def _filled(spec: Spec) -> tf.Tensor:
    if spec.dtype.startswith(("float", "bfloat")):
        return tf.cast(tf.random.stateless_uniform(cast(Any, spec.shape), seed=(0, 1)), spec.dtype)
    return tf.zeros(spec.shape, spec.dtype)


def _median(function: Callable, *arguments: Any) -> float:
    compiled = tf.function(function, autograph=False)
    times, begun = [], time.perf_counter()
    for _ in range(_RUNS + 1):
        start = time.perf_counter()
        compiled(*arguments)
        tf.test.experimental.sync_devices()
        times.append(time.perf_counter() - start)
        if len(times) > 2 and time.perf_counter() - begun > _ENOUGH_SECONDS:
            break
    return statistics.median(times[1:])
