"""Which results a selective replay takes over, found by the operations that make them, whatever the layer is.

They are those of dear products, which are most of a layer's work and little of its memory: beside them a transformer
stores attention scores and results of activation functions, which are cheap to compute again. Korthikanti et al. 2022,
arXiv:2205.05198, call it selective recomputation; `jax.checkpoint_policies.dots_with_no_batch_dims_saveable` is such a
rule. What attention makes of its scores is small beside them, and is stored, too, as FlashAttention does (Dao et al.
2022, arXiv:2205.14135). What others of a plan's nodes read is left out: a segment may end there, which stores it
anyway.
"""

import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from tfgc._step import flop_counts

# Where the batch is open, that of a common one.
_BATCH = 32
# A product is dear from so many multiplications for each element of its result on.
_DEAR = 64
# A product of activations is stored if one of them has so many times its elements.
_CONTRACTED = 2
# What usually follows a product, and takes nothing else of the step's activations.
_WITH_WEIGHTS = frozenset(["Add", "AddV2", "BiasAdd", "Mul"])
_MOVED = frozenset(["ExpandDims", "Identity", "Reshape", "Squeeze", "Transpose"])
# Their gradient reads what they made, and not what they were given.
_BY_RESULT = frozenset(["Elu", "Relu", "Relu6", "Selu", "Sigmoid", "Softmax", "Tanh"])


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
        are_broadcast = all(one.op not in self._active and _elements(one) < _elements(tensor) for one in others)
        finishes = op.type in _BY_RESULT or (op.type in _WITH_WEIGHTS and are_broadcast)
        return finishes and _elements(op.outputs[0]) == _elements(tensor)


def _is_fraction(made: tf.Tensor, given: tf.Tensor, times: int) -> bool:
    """Whether a tensor has so many times the elements of what is made of it, whatever its open sizes are."""
    if made.shape.rank is None or given.shape.rank is None:
        return False
    open_sizes = (tensor.shape.as_list().count(None) for tensor in (given, made))
    return times * _elements(made) <= _elements(given) and operator.ge(*open_sizes)


def _elements(tensor: tf.Tensor) -> int:
    """Elements of a tensor, with a common batch where that is open; 0 where its rank is not known."""
    return 0 if tensor.shape.rank is None else math.prod(_BATCH if size is None else size for size in tensor.shape)
