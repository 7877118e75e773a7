"""A rewritten step as TensorFlow runs it: a GraphDef of its operations, imported into the function being traced.

Nothing of TensorFlow is replaced. The operations are those of the trace; a copy is the same node with other inputs.
"""

import weakref
from collections.abc import Collection, Sequence
from typing import Any

import tensorflow as tf

from tfgc._errors import UnsupportedModelError
from tfgc._framework import graph_optimizer, host_memory
from tfgc._rewrite.waits import waits
from tfgc._run.fences import Fences
from tfgc._run.host_nodes import HostNodes
from tfgc._run.unread import unread_filters
from tfgc._step.step import HOST_COPIES, Step
from tfgc._step.trace import Trace

# TensorFlow's graph optimizer makes sums and products of the same terms in another order, which holds other tensors.
_REASSOCIATED = frozenset(["Add", "AddV2", "AddN", "Sub", "Mul", "Div", "RealDiv"])


class Built:
    """What builds a step in the graph at hand."""

    def __init__(self, trace: Trace, step: Step, xla: bool) -> None:
        self._function = trace.function
        self._inputs = [t.op.name for t in trace.function.graph.inputs]
        if xla and any(op.type in HOST_COPIES for op in step.ops.values()):
            raise UnsupportedModelError(host_memory.XLA)
        # No placeholder may be left in what is imported: XLA refuses it.
        self._definition = definition(trace, step, xla, set(self._inputs), HostNodes(trace, step))
        self._used = {name.split(":")[0].lstrip("^") for node in self._definition.node for name in node.input}
        self._results, self._last, self._registered = trace.results, trace.last, trace.registered

    def __call__(self, tensors: Sequence[Any]) -> list[Any]:
        """The results of the step, in the order of the trace's outputs.

        Args:
            tensors: What the trace takes, without what it captured.
        """
        graph: Any = tf.compat.v1.get_default_graph()
        weakref.finalize(graph, len, self._registered)  # keeps them as long
        given = [*tensors, *map(graph.capture, self._function.captured_inputs)]
        direct = dict(zip(self._inputs, given))
        read = {name: tensor for name, tensor in direct.items() if name in self._used}
        wanted = [name for name in self._results if name not in direct]
        made = tf.graph_util.import_graph_def(
            self._definition,
            input_map=read,
            return_elements=[*(name if ":" in name else f"{name}:0" for name in wanted), *self._last],
            name="",
        )
        by_name = dict(zip(wanted, made))
        with tf.control_dependencies(made[len(wanted) :]):
            return [tf.identity(by_name[name] if name in by_name else direct[name]) for name in self._results]


def definition(
    trace: Trace, step: Step, xla: bool, without: Collection[str] = (), host: HostNodes | None = None
) -> Any:
    """The GraphDef of a step, but for some operations by name, and for copies to the host and back without `host`."""
    made = tf.compat.v1.GraphDef()
    made.versions.CopyFrom(trace.definition.versions)
    made.library.CopyFrom(trace.definition.library)
    # A step as traced runs as TensorFlow would run it.
    edges = {} if xla or step.order == trace.step.order else waits(step)
    fences = Fences(trace, step, made) if xla else None
    copies = {op.name for op in step.ops.values() if op.type in HOST_COPIES}
    absent = {*without, *(copies if host is None else host.unneeded)}
    unread, biases = ([], set[int]()) if xla else unread_filters(trace, step)
    made.node.extend(node for node in unread if node.name not in without)
    for i in step.order:
        op = step.ops[i]
        if op.name in without:
            continue
        waits_for = {*op.controls, *edges.get(i, set()) - biases}
        controls = {step.ops[j].name for j in waits_for if j in step.ops} - absent
        if op.type in HOST_COPIES:
            made.node.extend(host.of(i, controls) if host is not None and op.name not in absent else ())
            continue
        node = made.node.add()
        node.CopyFrom(trace.nodes[op.traced if op.segment else i])
        node.name = op.name
        del node.input[:]
        read = op.inputs if host is None else map(host.read, op.inputs)
        node.input.extend(step.tensor_name(t) if fences is None else fences.read(i, t) for t in read)
        node.input.extend(f"^{name}" for name in sorted(controls))
        if edges and step.makes[i] and op.type in _REASSOCIATED:
            graph_optimizer.leave(node)
    return made
