"""A trace with the operations of the functions that it calls in place of the calls, and with sums as they come.

A body runs when what its operations read is there, so that an order may put others between them. What is stateful in it
waits for what the call waited for, and what waited for the call waits for it. A function that XLA compiles for itself
stays a call.

TensorFlow adds the gradients of a tensor that is used often when all are there: a weight of a recurrent cell has one
for each step, an activation of a network that is differentiated twice half a dozen. Sums of two hold one or two. They
are made in the order in which the kernel adds, so that the bits are the same: it begins with the first term that it may
write over. https://github.com/tensorflow/tensorflow/blob/master/tensorflow/core/kernels/aggregate_ops.h
"""

import functools
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfgc._framework import concrete_functions, private_api
from tfgc._step import inner_reads
from tfgc._step.merged import merged
from tfgc._step.step import NOT_OF_THE_STEP, VIEWS


class Inlined:
    """Operations of a graph and of what it calls.

    Attributes:
        ops: As TensorFlow made them; those of a function that is called twice are there twice.
        nodes: Of each the node in one graph, by names of that graph.
        graphs: Each graph, as often as it is called, and where each of its operations begins among `ops`.
        results: Names of the tensors that the graph returns.
        last: Names of the operations that must have run when it returns.
        functions: What nodes call besides what they called as made.
    """

    def __init__(self, graph: Any, functions: Mapping[str, Any], every: bool = False) -> None:
        self._functions, self._every = functions, every
        self.functions: list[Any] = []
        self.ops: list[tf.Operation] = []
        self.nodes: list[Any] = []
        self.graphs: list[tuple[Any, list[int]]] = []
        self.results, self.last, _ = self._add(graph, "", (), ())

    def _add(
        self, graph: Any, scope: str, given: Sequence[str], after: Iterable[str]
    ) -> tuple[list[str], list[str], list[str]]:
        """Add a graph in a scope that reads `given`; what it returns, what must have run, and what is stateful."""
        # What has another name than in its own graph: tensors, and for an operation the ones to wait for in its place.
        read_as = {(t.op.name, 0): name for t, name in zip(graph.inputs, given)}
        waited: dict[str, list[str]] = {name: [] for name, _ in read_as}
        stateful: list[str] = []
        at = _positions(graph)
        same = functools.cache(lambda: merged(graph, at))
        begins: list[int] = []
        self.graphs.append((graph, begins))

        def reading(tensor: tf.Tensor) -> str:
            name, i = tensor.op.name, tensor.value_index
            return read_as.get((name, i)) or f"{scope}{name}" + (f":{i}" if i else "")

        def waiting(ops: Iterable[tf.Operation]) -> list[str]:
            return list(dict.fromkeys(name for op in ops for name in waited.get(op.name, [scope + op.name])))

        for op, node in zip(graph.get_operations(), graph.as_graph_def().node):
            begins.append(len(self.nodes))
            if op.name in waited:
                continue
            read, controls = [reading(t) for t in op.inputs], waiting(op.control_inputs)
            body = None if self._stays(node) else concrete_functions.called_graph(op)
            if body is not None:
                made, _, inside = self._add(body, f"{scope}{op.name}/", read, [*after, *controls])
                read_as.update(((op.name, i), name) for i, name in enumerate(made))
                waited[op.name] = [*controls, *(inside or (name.partition(":")[0] for name in read))]
                stateful += inside
                continue
            if op.op_def.is_stateful:
                controls = list(dict.fromkeys([*controls, *after]))
                stateful.append(scope + op.name)
            called = node
            if op.type in ("While", "If", "StatelessWhile", "StatelessIf"):
                called = tf.compat.v1.NodeDef()
                called.CopyFrom(node)
                values, functions = inner_reads.moved_out(called, self._functions)
                self.functions += functions
                for i, (function, inner) in values.items():
                    inside = concrete_functions.graph_of(op, function).get_operation_by_name(inner.name)
                    self._append(inside, inner, f"{scope}{op.name}/read/{i}", [read[i]], controls)
                    if "While" in op.type:
                        read_as[op.name, i] = read[i]  # what a loop handed on
                    read[i] = f"{scope}{op.name}/read/{i}"
            if op.type == "AddN" and len(read) > 2 and op.name in at and op.outputs[0].dtype != tf.variant:
                k = _written_over(op, at, same())
                read[0], read[k] = read[k], read[0]
                *sums, (_, *read) = _sums(f"{scope}{op.name}", read)
                for name, *pair in sums:
                    self._append(op, node, name, pair, [])
            self._append(op, called, scope + op.name, read, controls)
        begins.append(len(self.nodes))
        return [reading(t) for t in graph.outputs], waiting(graph.control_outputs), stateful

    def _stays(self, node: Any) -> bool:
        """Whether a call stays one: XLA compiles what is called, or it is not to be inlined unless every one is."""
        called = self._functions.get(node.attr["f"].func.name) if "f" in node.attr else None
        return _is_compiled(node) or (
            not self._every and called is not None and "_noinline" in called.attr and called.attr["_noinline"].b
        )

    def _append(self, op: tf.Operation, node: Any, name: str, read: Sequence[str], controls: Iterable[str]) -> None:
        made = tf.compat.v1.NodeDef()
        made.CopyFrom(node)
        made.name = name
        made.input[:] = [*read, *(f"^{name}" for name in controls)]
        if op.type == "AddN":
            made.attr["N"].i = len(read)
        if "_class" in made.attr:  # in one place with operations by names of another graph
            del made.attr["_class"]
        self.ops.append(op)
        self.nodes.append(made)


def _written_over(sum_of_many: tf.Operation, at: Mapping[str, int], same: Mapping[str, list[tf.Operation]]) -> int:
    """The position of the term that a sum begins with: the first that lies in what nothing else reads."""
    buffers = [_buffer(t, sum_of_many, at, same) for t in sum_of_many.inputs]
    return next((k for k, buffer in enumerate(buffers) if buffer is not None and buffers.count(buffer) == 1), 0)


def _buffer(tensor: tf.Tensor, by: tf.Operation, at: Mapping[str, int], same: Mapping[str, Any]) -> Hashable:
    """What a tensor lies in, if that is the step's own or comes to a gradient from outside, and is not read later."""
    results, given = ({id(t) for t in row} for row in (tensor.graph.outputs, tensor.graph.inputs))
    while True:
        op, i = tensor.op, tensor.value_index
        alike = [other.outputs[i] for other in same[op.name]]
        if any(id(t) in results or any(at.get(op.name, 0) > at[by.name] for op in t.consumers()) for t in alike):
            return None
        if op.type == "Placeholder":
            return None if id(tensor) in given else (op.name, i)
        if op.type not in VIEWS or not op.inputs:
            return None if op.type in NOT_OF_THE_STEP else (alike[0].op.name, i)
        tensor = op.inputs[i if op.type == "IdentityN" else 0]


def _positions(graph: Any) -> dict[str, int]:
    """For each operation that runs when a graph does its position."""
    found: set[str] = set()
    waiting = [*(t.op for t in graph.outputs), *graph.control_outputs]
    while waiting:
        op = waiting.pop()
        if op.name not in found:
            found.add(op.name)
            waiting += [*(t.op for t in op.inputs), *op.control_inputs]
    return {op.name: i for i, op in enumerate(graph.get_operations()) if op.name in found}


def _sums(name: str, terms: Sequence[str]) -> list[tuple[str, str, str]]:
    """Sums of two that make an AddN, each by name: of the first two to nine terms, and of these and groups of eight."""
    made: list[tuple[str, str, str]] = []

    def add(one: str, other: str) -> str:
        made.append((f"{name}/{len(made)}", one, other))
        return made[-1][0]

    first = (len(terms) - 2) % 8 + 2
    groups = [terms[:first], *(terms[i : i + 8] for i in range(first, len(terms), 8))]
    functools.reduce(add, (functools.reduce(add, group) for group in groups))
    return made


def _is_compiled(node: Any) -> bool:
    return "_XlaMustCompile" in node.attr and node.attr["_XlaMustCompile"].b


def is_stateful(node: Any, functions: Mapping[str, Any]) -> bool:
    """Whether a node, or what it calls, may do or return something else when it runs again."""
    inside = [f.name for value in node.attr.values() for f in (value.func, *value.list.func) if f.name]
    if not inside or any(name not in functions for name in inside):
        return private_api.is_stateful(node.op)
    return any(is_stateful(other, functions) for name in inside for other in functions[name].node_def)
