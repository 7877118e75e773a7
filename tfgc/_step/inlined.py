"""A trace with the operations of the functions that it calls in place of the calls.

A body runs when what its operations read is there, so that an order may put others between them. What is stateful in it
waits for what the call waited for, and what waited for the call waits for it. A function that XLA compiles for itself
stays a call.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from tfgc._framework import concrete_functions


class Inlined:
    """Operations of a graph and of what it calls.

    Attributes:
        ops: As TensorFlow made them; those of a function that is called twice are there twice.
        nodes: Of each the node in one graph, by names of that graph.
        graphs: Each graph, as often as it is called, and where each of its operations begins among `ops`.
        results: Names of the tensors that the graph returns.
        last: Names of the operations that must have run when it returns.
    """

    def __init__(self, graph: Any) -> None:
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
            body = None if _is_compiled(node) else concrete_functions.called_graph(op)
            if body is not None:
                made, _, inside = self._add(body, f"{scope}{op.name}/", read, [*after, *controls])
                read_as.update(((op.name, i), name) for i, name in enumerate(made))
                waited[op.name] = [*controls, *(inside or (name.partition(":")[0] for name in read))]
                stateful += inside
                continue
            if op.op_def.is_stateful:
                controls = list(dict.fromkeys([*controls, *after]))
                stateful.append(scope + op.name)
            self.ops.append(op)
            self.nodes.append(_node(node, scope + op.name, [*read, *(f"^{name}" for name in controls)]))
        begins.append(len(self.nodes))
        return [reading(t) for t in graph.outputs], waiting(graph.control_outputs), stateful


def _is_compiled(node: Any) -> bool:
    return "_XlaMustCompile" in node.attr and node.attr["_XlaMustCompile"].b


def _node(node: Any, name: str, read: Iterable[str]) -> Any:
    made = tf.compat.v1.NodeDef()
    made.CopyFrom(node)
    made.name = name
    made.input[:] = read
    if "_class" in made.attr:  # in one place with operations by names of another graph
        del made.attr["_class"]
    return made
