"""Time the nodes of a model on this device, and remember the times.

Times are kept in the user's cache folder (`TFGC_CACHE` names another), one file for each model fingerprint, batch,
device (of a GPU its name) and version of tfgc, TensorFlow and Keras, in it one entry for each call that differs from
others.
"""

import contextlib
import dataclasses
import gc
import hashlib
import json
import math
import os
import pathlib
import re
import statistics
import sys
import uuid
from typing import Any

import keras
import platformdirs
import rich.console
import tensorflow as tf

from tfgc import _files
from tfgc._core import checked_json
from tfgc._core.graph import Graph, Node
from tfgc._core.plan import describe
from tfgc._costs import node_costs
from tfgc._costs.step_times import NodeSeconds, measured
from tfgc._errors import TfgcError
from tfgc._framework import memory_counts
from tfgc._framework.memory_errors import OUT_OF_MEMORY
from tfgc._tracing.keras_graph import Program


def times(program: Program, graph: Graph) -> dict[str, NodeSeconds]:
    """The seconds of each node, by name, from the cache or from a few steps; equal calls take equally long."""
    file = _file(graph)
    known = _load(file)
    calls = {node.name: _call(program, graph, node) for node in graph.nodes}
    if not known.keys() >= set(calls.values()):
        with rich.console.Console(stderr=True).status("timing the layers in a training step"):
            runs: dict[str, list[NodeSeconds]] = {}
            for call, seconds in zip(calls.values(), measured(program, graph)):
                runs.setdefault(call, []).append(seconds)
        gc.collect()  # The traced step holds copies of all weights, and itself.
        known = {call: NodeSeconds(*map(statistics.fmean, zip(*seconds))) for call, seconds in runs.items()}
        _store(file, known)
    return {name: known[call] for name, call in calls.items()}


def timed(graph: Graph, times: dict[str, NodeSeconds], factor: float = 1.0) -> Graph:
    """`graph` with measured seconds, times a factor."""
    fields = "seconds", "backward_seconds", "selective_seconds"
    nodes = []
    for node, cost in zip(graph.nodes, graph.costs):
        scaled: dict[str, Any] = {field: factor * count for field, count in zip(fields, times[node.name])}
        nodes.append(dataclasses.replace(node, cost=dataclasses.replace(cost, **scaled)))
    return dataclasses.replace(graph, nodes=tuple(nodes))


def _call(program: Program, graph: Graph, node: Node) -> str:
    wanted = graph.cost(node).differentiable_inputs
    key = node_costs.call_key(program, node, [ref in wanted for ref in node.inputs])
    if key is None:  # Its code is the user's, and may change.
        try:
            key = node.name, node_costs.text(program, graph, node)
        except OUT_OF_MEMORY:
            raise
        except Exception:  # It cannot be traced on tensors that stand for its own: its time is not remembered.
            key = node.name, uuid.uuid4().hex
    return hashlib.sha256(repr(key).encode()).hexdigest()[:16]


def _file(graph: Graph) -> pathlib.Path:
    kernels = "" if memory_counts.has_onednn() else "-without-oneDNN"
    device = f"CPU-{os.cpu_count()}{kernels}"
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        name = tf.config.experimental.get_device_details(gpus[0]).get("device_name", "GPU")
        device = re.sub(r"\W+", "-", name)
    sizes = [node.describe() + str(node.outputs) for node in graph.nodes]
    fingerprint = hashlib.sha256("\n".join([*describe(graph), *sizes]).encode()).hexdigest()[:16]
    folder = os.environ.get("TFGC_CACHE") or platformdirs.user_cache_dir("tfgc")
    versions = "-".join([sys.modules["tfgc"].__version__, tf.__version__, keras.__version__])
    return pathlib.Path(folder) / f"step-times-{fingerprint}-{device}-{versions}.json"


def _load(file: pathlib.Path) -> dict[str, NodeSeconds]:
    try:
        written = checked_json.loads(file.read_text()).items()
        known = {call: NodeSeconds(*map(float, times)) for call, times in written}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}
    return known if all(0 <= seconds < math.inf for times in known.values() for seconds in times) else {}


def _store(file: pathlib.Path, known: dict[str, NodeSeconds]) -> None:
    # A folder that cannot be written costs the next call its time, not this one its plan.
    with contextlib.suppress(OSError, TfgcError):
        file.parent.mkdir(parents=True, exist_ok=True)
        _files.write(file, json.dumps(known))
