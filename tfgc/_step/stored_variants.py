"""What the variants of a graph hold: lists that loops fill, once a trip, and optionals that branches make.

In them TensorFlow stores what the gradients of loops and branches read.
"""

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfgc._framework import concrete_functions
from tfgc._step.loop_trips import LOOPS, position, trips
from tfgc._step.step import VIEWS
from tfgc._step.work import tensor_bytes

_BRANCHES = ("If", "StatelessIf", "Case", "StatelessCase")
_ITEMS = {"TensorListPushBack": 1, "TensorListSetItem": 2}  # what fills a list, and which input goes into it
# Has the one buffer of a variable, or of a constant.
_SHARED = ("ReadVariableOp", "Const")


class Variants:
    """Bytes of variants; an open size counts as `rows`."""

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
            return sum(self._made(t) for t in op.inputs if _root(t).op.type != "Placeholder")
        if op.type in LOOPS:
            gained = self._gained(op).get(tensor.value_index, 0)
            return gained * trips(op) if gained else 0
        branch = self._branch(op) if op.type in _BRANCHES else None
        return 0 if branch is None else self.bytes(_root(branch.outputs[tensor.value_index]))

    def _made(self, tensor: tf.Tensor) -> int:
        """Bytes of a tensor of a function."""
        made = _root(tensor)
        if made.dtype == tf.variant:
            return self.bytes(made)
        return 0 if made.op.type in _SHARED else tensor_bytes(made, self._rows)

    def _branch(self, op: tf.Operation) -> Any:
        """The graph of the branch that stores most; None if it is not known."""
        if op not in self._heaviest:
            graphs = (concrete_functions.graph_of(op, name) for name in _functions_called(op.node_def))
            known = (graph for graph in graphs if graph is not None)
            self._heaviest[op] = max(known, key=lambda g: sum(self.bytes(_root(t)) for t in g.outputs), default=None)
        return self._heaviest[op]

    def _gained(self, loop: tf.Operation) -> dict[int, int]:
        """Bytes that each output of a loop gains in one trip; of lists that get the same tensors, one gains them."""
        name = loop.get_attr("body").name
        if name not in self._gains:
            body = concrete_functions.graph_of(loop, name)
            filled = {} if body is None else {i: _root(t).op for i, t in enumerate(body.outputs)}
            # What gradients read stays longer than an array that the loop fills, and comes first.
            items = {i: op.inputs[at] for kind, at in _ITEMS.items() for i, op in filled.items() if op.type == kind}
            gains, counted = {}, set()
            for i, item in items.items():
                made = _handed_on(item, body)
                gains[i] = 0 if made.op.type == "Placeholder" or made.ref() in counted else self._made(made)
                counted.add(made.ref())
            self._gains[name] = gains
        return self._gains[name]


def _functions_called(node: Any) -> Iterator[str]:
    return (f.name for value in node.attr.values() for f in (value.func, *value.list.func) if f.name)


def _handed_on(tensor: tf.Tensor, body: Any) -> tf.Tensor:
    """What a trip of a loop makes that is a tensor of its body in this trip or in one after it, or an argument."""
    passed: set[int] = set()
    while (at := position(_root(tensor), body)) is not None and at not in passed:
        passed.add(at)
        tensor = body.outputs[at]
    return _root(tensor)


def _root(tensor: tf.Tensor) -> tf.Tensor:
    """The tensor whose buffer another one renames, or itself."""
    op = tensor.op
    if op.type in VIEWS:
        return _root(op.inputs[tensor.value_index if op.type == "IdentityN" else 0])
    if op.type == "Mul":
        # TensorFlow's optimizer drops a multiplication by one, such as the beta of silu.
        for one, other in (op.inputs, op.inputs[::-1]):
            if one.shape.rank == 0 and one.op.type == "Const" and tf.get_static_value(one) == 1:
                return _root(other)
    return tensor
