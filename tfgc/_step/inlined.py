"""A trace with the operations of the functions that it calls in place of the calls, and with sums as they come.

A body runs when what its operations read is there, so that an order may put others between them. What is stateful in it
waits for what the call waited for, and what waited for the call waits for it. A function that XLA compiles for itself
stays a call.

TensorFlow adds the gradients of a tensor that is used often when all are there: a weight of a recurrent cell has one
for each step, an activation of a network that is differentiated twice half a dozen. Sums of two hold one or two. They
are made in the order in which the kernel adds, so that the bits are the same.
"""

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfgc._framework import concrete_functions
from tfgc._step import inner_reads


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

    def __init__(self, graph: Any, functions: Mapping[str, Any], small: int, every: bool = False) -> None:
        self._functions, self._small, self._every = functions, small, every
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
            if op.type == "AddN" and len(read) > 2 and self._is_large(op.outputs[0]):
                *parts, (_, *read) = sums(f"{scope}{op.name}", read)
                for name, *pair in parts:
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

    def _is_large(self, tensor: tf.Tensor) -> bool:
        count = tensor.shape.num_elements()
        return tensor.dtype != tf.variant and (count is None or count * tensor.dtype.size >= self._small)


def sums(name: str, terms: Sequence[str]) -> list[tuple[str, str, str]]:
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
