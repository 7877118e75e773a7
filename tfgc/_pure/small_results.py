"""Which results of a first run its replay takes over: those that are small beside what they are computed from.

The statistics of a normalization, the mean of squeeze-and-excitation, a norm: a replay computes them again and so
reads large tensors, though it would cost next to nothing to keep them. They are found by the operations that make
them, whatever the layer is.
"""

import math
from collections.abc import Iterable

import tensorflow as tf

# A result is small if what its operation reads has so many times its elements.
_SMALL = 64
# Where the batch is open, that of a common one.
_BATCH = 32
# These read little of what they are given, or make as much of it as its values say.
_SELECTIONS = frozenset([
    "Const", "Gather", "GatherNd", "GatherV2", "Rank", "Shape", "ShapeN", "Size", "Slice", "Split", "SplitV",
    "StridedSlice", "Unpack", "Where",
])  # fmt: skip


def small_results(operations: Iterable[tf.Operation], given: Iterable[tf.Tensor]) -> list[tf.Tensor]:
    """The small results of a traced function, whose operations are in the order in which they were made.

    What depends on none of the `given` arguments and values of variables is a constant.
    """
    after = {tensor.op for tensor in given}
    found = []
    for op in operations:
        if op not in after and any(tensor.op in after for tensor in op.inputs):
            after.add(op)
            if len(op.outputs) == 1 and op.type not in _SELECTIONS and _is_small(op):
                found.append(op.outputs[0])
    return found


def _is_small(op: tf.Operation) -> bool:
    made, read = op.outputs[0], max(elements(tensor) for tensor in op.inputs)
    # A variant is a scalar that may hold any number of tensors.
    counted = made.shape.rank is not None and (made.dtype.is_floating or made.dtype.is_integer or made.dtype.is_bool)
    return counted and _SMALL * elements(made) <= read


def elements(tensor: tf.Tensor) -> int:
    """Elements of a tensor, with a common batch where that is open; 0 where its rank is not known."""
    return 0 if tensor.shape.rank is None else math.prod(_BATCH if size is None else size for size in tensor.shape)
