"""Which sizes of a first run its replay takes over, where the sizes of a batch are open.

The gradient of a sum asks for the shapes of what is added, that of a mean for the shape of what it is the mean of.
Where these are not known while it is traced, a replay would compute a whole product for nothing but its shape. So the
first run notes shapes. An operation that makes what is shaped as its input needs no shape of its own.
"""

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

# They make something of the shape of their first input.
_ALIKE = frozenset([
    "Abs", "BiasAdd", "Cast", "CheckNumerics", "Cumsum", "Elu", "Erf", "Erfc", "Exp", "Expm1", "Identity", "LeakyRelu",
    "Log", "Log1p", "LogSoftmax", "Neg", "PreventGradient", "Reciprocal", "Relu", "Relu6", "Rsqrt", "Selu", "Sigmoid",
    "Sign", "Softmax", "Softplus", "Softsign", "Sqrt", "Square", "StopGradient", "Tanh",
])  # fmt: skip
# Of the shape of one that all others are broadcast to.
_BROADCAST = frozenset([
    "Add", "AddV2", "Greater", "GreaterEqual", "Less", "LessEqual", "Maximum", "Minimum", "Mul", "Pow", "RealDiv",
    "SelectV2", "SquaredDifference", "Sub",
])  # fmt: skip
# Of the shape of their first input, but for ones, where they keep all axes.
_REDUCING = frozenset(["EuclideanNorm", "Max", "Mean", "Min", "Prod", "Sum"])
_ASKING = frozenset(["Shape", "ShapeN"])


class TakenShapes:
    """The shapes that a traced function notes, as `tensors`, which are added to its graph."""

    def __init__(self, tensors: Iterable[tf.Tensor]) -> None:
        """Note those of `tensors`, arguments and what is made of them, in the order in which they are made."""
        self._source: dict[Any, tf.Tensor] = {}
        self._noted: dict[Any, tf.Tensor] = {}
        self._reduced: dict[Any, tf.Tensor] = {}  # for what is reduced with all axes kept, the source of what it is of
        for tensor in {t.ref(): t for t in tensors}.values():
            self._note(tensor)

    @property
    def tensors(self) -> list[tf.Tensor]:
        """Vectors of 32-bit integers."""
        return list(self._noted.values())

    def _note(self, tensor: tf.Tensor) -> None:
        """Note the shape of a tensor if it is open, and not that of what it is made of."""
        if not (tensor.dtype.is_floating or tensor.dtype.is_complex) or tensor.shape.is_fully_defined():
            return
        source = self._source_of(tensor)
        self._source[tensor.ref()] = source
        if source is tensor:
            self._noted[tensor.ref()] = tf.shape(tensor)
            op = tensor.op
            if op.type in _REDUCING and op.get_attr("keep_dims") and op.inputs[0].ref() in self._source:
                self._reduced[tensor.ref()] = self._source[op.inputs[0].ref()]

    def _source_of(self, tensor: tf.Tensor) -> tf.Tensor:
        op = tensor.op
        alike = op.inputs[:1] if op.type in _ALIKE else op.inputs if op.type in _BROADCAST else ()
        for given in alike:
            others = [other for other in op.inputs if other is not given] if op.type in _BROADCAST else []
            if given.ref() in self._source and all(self._is_broadcast(other, given) for other in others):
                return self._source[given.ref()]
        return tensor

    def _is_broadcast(self, other: tf.Tensor, given: tf.Tensor) -> bool:
        """Whether the result of both has the shape of the one that is given, whatever its open sizes are."""
        if other.ref() in self._source:
            reduced = self._reduced.get(self._source[other.ref()].ref())
            if reduced is not None and reduced is self._source[given.ref()]:
                return True
        return _is_smaller(other, given)

    def instead(self, operations: Iterable[tf.Operation]) -> dict[str, list[tf.Tensor]]:
        """For results of operations that ask for a shape, by name, what equals it, the noted one last.

        Before it is the shape of what the tensor is made of, which is added to the graph.
        """
        found: dict[str, list[tf.Tensor]] = {}
        made: dict[Any, tf.Tensor] = {}
        for op in [op for op in operations if op.type in _ASKING and op.outputs[0].dtype == tf.int32]:
            for asked, result in zip(op.inputs, op.outputs):
                source = self._source.get(asked.ref())
                if source is not None:
                    if source is not asked and source.ref() not in made:
                        made[source.ref()] = tf.shape(source)
                    near = [] if source is asked else [made[source.ref()]]
                    found[result.name] = [*near, self._noted[source.ref()]]
        return found


def _is_smaller(other: tf.Tensor, given: tf.Tensor) -> bool:
    """Whether no size of one exceeds that of the other one, as far as sizes are known."""
    if other.shape.rank is None or given.shape.rank is None or other.shape.rank > given.shape.rank:
        return False
    sizes = zip(other.shape[::-1], given.shape[::-1])
    return all(size == 1 or (size is not None and size == full) for size, full in sizes)
