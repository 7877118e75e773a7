"""What the variants of a graph hold: lists that loops fill, once a trip, and optionals that branches make.

In them TensorFlow stores what the gradients of loops and branches read.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf

from tfgc._costs.loop_trips import LOOPS, trips
from tfgc._costs.single_tensors import root, tensor_bytes
from tfgc._framework import concrete_functions
from tfgc._pure.obstacles import functions_called

_BRANCHES = ("If", "StatelessIf", "Case", "StatelessCase")
# Has the one buffer of a variable, or of a constant.
_SHARED = ("ReadVariableOp", "Const")


class Variants:
    """Bytes of variants. Tensors whose first size alone is not known have so many `rows`."""

    def __init__(self, rows: int | None) -> None:
        self._rows = rows
        self._heaviest: dict[tf.Operation, Any] = {}
        self._gains: dict[str, dict[int, int]] = {}  # by the name of a loop's body

    def bytes(self, tensor: tf.Tensor) -> int:
        """Bytes of the tensors in a list or optional; 0 for what holds none, or is not known."""
        op = tensor.op
        if op.type == "TensorListFromTensor":
            return tensor_bytes(op.inputs[0], self._rows)
        if op.type == "OptionalFromValue":
            return sum(self._made(t) for t in op.inputs if root(t).op.type != "Placeholder")
        if op.type in LOOPS:
            gained = self._gained(op).get(tensor.value_index, 0)
            return gained * trips(op) if gained else 0
        branch = self._branch(op) if op.type in _BRANCHES else None
        return 0 if branch is None else self.bytes(root(branch.outputs[tensor.value_index]))

    def returned(self, operations: Iterable[tf.Operation]) -> Iterator[tuple[tf.Tensor, tf.Tensor]]:
        """Optionals that hold what their branch returns besides, each with that output of the operation."""
        for op in operations:
            branch = self._branch(op) if op.type in _BRANCHES else None
            made = [] if branch is None else [root(t) for t in branch.outputs]
            returned = {t.ref(): i for i, t in enumerate(made) if t.dtype != tf.variant}
            for i, t in enumerate(made):
                held = {root(value).ref() for value in t.op.inputs} if t.op.type == "OptionalFromValue" else set()
                for value in held & returned.keys():
                    yield op.outputs[i], op.outputs[returned[value]]

    def _made(self, tensor: tf.Tensor) -> int:
        """Bytes of a tensor of a function."""
        made = root(tensor)
        if made.dtype == tf.variant:
            return self.bytes(made)
        return 0 if made.op.type in _SHARED else tensor_bytes(made, self._rows)

    def _branch(self, op: tf.Operation) -> Any:
        """The graph of the branch that stores most; None if it is not known."""
        if op not in self._heaviest:
            graphs = (concrete_functions.graph_of(op, name) for name in functions_called(op.node_def))
            stored = ((sum(self.bytes(root(t)) for t in graph.outputs), graph) for graph in graphs if graph is not None)
            self._heaviest[op] = max(stored, key=lambda pair: pair[0], default=(0, None))[1]
        return self._heaviest[op]

    def _gained(self, loop: tf.Operation) -> dict[int, int]:
        """Bytes that each output of a loop gains in one trip."""
        name = loop.get_attr("body").name
        if name not in self._gains:
            body = concrete_functions.graph_of(loop, name)
            filled = {} if body is None else {i: root(t).op for i, t in enumerate(body.outputs)}
            items = {"TensorListPushBack": 1, "TensorListSetItem": 2}
            self._gains[name] = {
                i: self._made(op.inputs[items[op.type]]) for i, op in filled.items() if op.type in items
            }
        return self._gains[name]
