"""Which results of a first run its replay takes over, found by the operations that make them, whatever the layer is.

Small ones are small beside what they are computed from: the statistics of a normalization, the mean of
squeeze-and-excitation, a norm. A replay would read large tensors to compute them again, though it costs next to nothing
to keep them.

Drawing random masks takes long on CPUs, and in bits they are small, too (`packed_masks`).

A selective replay also takes over the results of dear products. They are most of a layer's work and little of its
memory: beside them a transformer stores attention scores and results of activation functions, which are cheap to
compute again. Korthikanti et al. 2022, arXiv:2205.05198, call it selective recomputation;
`jax.checkpoint_policies.dots_with_no_batch_dims_saveable` is such a rule. What attention makes of its scores is small
beside them, and is stored, too, as FlashAttention does (Dao et al. 2022, arXiv:2205.14135). What others of a plan's
nodes read is left out: a segment may end there, which stores it without more ado.
"""

import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from tfgc._step import flop_counts

# A result is small if what its operation reads has so many times its elements.
_SMALL = 64
# Where the batch is open, that of a common one.
_BATCH = 32
# These read little of what they are given, or make as much of it as its values say.
_SELECTIONS = frozenset([
    "Const", "Gather", "GatherNd", "GatherV2", "Rank", "Shape", "ShapeN", "Size", "Slice", "Split", "SplitV",
    "StridedSlice", "Unpack", "Where",
])  # fmt: skip
# A product is dear from so many multiplications for each element of its result on.
_DEAR = 64
# A product of activations is stored if one of them has so many times its elements.
_CONTRACTED = 2
# What usually follows a product, and takes nothing else of the step's activations.
_WITH_WEIGHTS = frozenset(["Add", "AddV2", "BiasAdd", "Mul"])
_MOVED = frozenset(["ExpandDims", "Identity", "Reshape", "Squeeze", "Transpose"])
# Their gradient reads what they made, and not what they were given.
_BY_RESULT = frozenset(["Elu", "Relu", "Relu6", "Selu", "Sigmoid", "Softmax", "Tanh"])
_COMPARISONS = frozenset(["Greater", "GreaterEqual", "Less", "LessEqual"])
_SCALED = frozenset(["Add", "AddV2", "Cast", "Identity", "Mul", "Sub"])


def small_results(operations: Iterable[tf.Operation], given: Iterable[tf.Tensor]) -> list[tf.Tensor]:
    """The small results of a traced function, whose operations are in the order in which they were made."""
    after = {tensor.op for tensor in given}  # What depends on no argument or value of a variable is a constant.
    found = []
    for op in operations:
        if op not in after and any(tensor.op in after for tensor in op.inputs):
            after.add(op)
            if len(op.outputs) == 1 and op.type not in _SELECTIONS | flop_counts.VIEWS and _is_small(op):
                found.append(op.outputs[0])
    return found


def _is_small(op: tf.Operation) -> bool:
    made, read = op.outputs[0], max(op.inputs, key=elements)
    # A variant is a scalar that may hold any number of tensors.
    counted = made.dtype.is_floating or made.dtype.is_integer or made.dtype.is_bool
    return counted and _is_fraction(made, read, _SMALL)


def elements(tensor: tf.Tensor) -> int:
    """Elements of a tensor, with a common batch where that is open; 0 where its rank is not known."""
    return 0 if tensor.shape.rank is None else math.prod(_BATCH if size is None else size for size in tensor.shape)


def dear_products(
    operations: Sequence[tf.Operation], arguments: Iterable[tf.Tensor], ends: Iterable[tf.Tensor]
) -> list[tf.Tensor]:
    """The results of dear products in a traced function, each with the bias and scale that follow.

    Operations of its forward pass are in the order in which they were made. What depends on none of its arguments are
    weights. `ends` are results of nodes, the function's own among them.
    """
    products = _Products(operations, arguments, ends)
    found = [products.finished(op.outputs[0]) for op in operations if products.is_dear(op)]
    return [tensor for tensor in found if tensor is not None]


def masks(operations: Iterable[tf.Operation]) -> list[tf.Tensor]:
    """The results of comparing random numbers."""
    drawn: set[tf.Operation] = set()
    found = []
    for op in operations:
        if op.type.startswith("StatelessRandomUniform"):
            drawn.add(op)
        elif any(tensor.op in drawn for tensor in op.inputs):
            drawn.update([op] if op.type in _SCALED else [])
            found += op.outputs if op.type in _COMPARISONS else []
    return found


class _Products:
    def __init__(self, ops: Iterable[tf.Operation], arguments: Iterable[tf.Tensor], ends: Iterable[tf.Tensor]) -> None:
        self._active = {tensor.op for tensor in arguments}
        self._readers: dict[Any, list[tf.Operation]] = {}
        self._ends = {tensor.ref() for tensor in ends}
        for op in ops:
            if any(tensor.op in self._active for tensor in op.inputs):
                self._active.add(op)
            for tensor in op.inputs:
                self._readers.setdefault(tensor.ref(), []).append(op)

    def is_dear(self, op: tf.Operation) -> bool:
        """Whether an operation is a product with weights, or contracts activations, and is dear beside its result."""
        given = [tensor.op in self._active for tensor in op.inputs]
        if not any(given) or flop_counts.multiplications_per_element(op) < _DEAR:
            return False
        return not all(given) or any(_is_fraction(op.outputs[0], tensor, _CONTRACTED) for tensor in op.inputs)

    def finished(self, tensor: tf.Tensor) -> tf.Tensor | None:
        """What is best stored of a product: behind its bias, scale and activation; None for the result of a node."""
        while tensor.ref() not in self._ends:
            readers = self._readers.get(tensor.ref(), [])
            if len(readers) != 1 or not self._finishes(readers[0], tensor):
                return tensor
            tensor = readers[0].outputs[0]
        return None

    def _finishes(self, op: tf.Operation, tensor: tf.Tensor) -> bool:
        if op.outputs[0].dtype != tensor.dtype:
            return False
        if op.type in _MOVED:
            return op.inputs[0].ref() == tensor.ref()
        others = [other for other in op.inputs if other.ref() != tensor.ref()]
        are_broadcast = all(one.op not in self._active and elements(one) < elements(tensor) for one in others)
        finishes = op.type in _BY_RESULT or (op.type in _WITH_WEIGHTS and are_broadcast)
        return finishes and elements(op.outputs[0]) == elements(tensor)


def _is_fraction(made: tf.Tensor, given: tf.Tensor, times: int) -> bool:
    """Whether a tensor has so many times the elements of what is made of it, whatever its open sizes are."""
    if made.shape.rank is None or given.shape.rank is None:
        return False
    open_sizes = (tensor.shape.as_list().count(None) for tensor in (given, made))
    return times * elements(made) <= elements(given) and operator.ge(*open_sizes)
