"""Whether a call mixes the samples of a batch, read from its forward operations.

For each tensor this keeps the axis on which its samples lie, or None where it is the same for
all samples. An operation that sums, sorts or joins across that axis couples samples, as BatchNormalization
does; so, to be safe, does one that is not known here, such as a loop.
"""

import math
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

_ELEMENTWISE = frozenset(
    ["Add", "AddV2", "AddN", "Sub", "Mul", "RealDiv", "DivNoNan", "FloorDiv", "FloorMod", "Maximum", "Minimum", "Pow"]
    + ["Neg", "Exp", "Expm1", "Log", "Log1p", "Abs", "Sign", "Square", "Sqrt", "Rsqrt", "Reciprocal", "Erf", "Erfc"]
    + ["Relu", "Relu6", "LeakyRelu", "Elu", "Selu", "Tanh", "Sigmoid", "Softplus", "Softsign", "Sin", "Cos", "Round"]
    + ["SquaredDifference", "SelectV2", "ClipByValue", "Cast", "Equal", "NotEqual", "Greater", "GreaterEqual", "Less"]
    + ["LessEqual", "LogicalAnd", "LogicalOr", "LogicalNot", "Floor", "Ceil", "IsNan", "BiasAdd", "Identity"]
    + ["StopGradient", "PreventGradient", "ZerosLike", "OnesLike", "Xdivy", "Xlogy", "IdentityN", "CheckNumerics"]
)
_WINDOWS = frozenset(
    ["Conv2D", "Conv3D", "DepthwiseConv2dNative", "MaxPool", "MaxPool3D", "AvgPool", "AvgPool3D", "ResizeBilinear"]
    + ["ResizeNearestNeighbor", "ResizeBicubic", "SpaceToDepth", "DepthToSpace", "Dilation2D", "LRN"]
)
_REDUCTIONS = frozenset(["Sum", "Mean", "Max", "Min", "Prod", "Any", "All", "ArgMax", "ArgMin", "EuclideanNorm"])
_SAME_LENGTH = frozenset(["Slice", "StridedSlice", "Pad", "PadV2", "MirrorPad", "Tile", "BroadcastTo", "ReverseV2"])
_SHAPES = frozenset(["Shape", "ShapeN", "Rank", "Size"])


class _CoupledError(Exception):
    pass


def couples(operations: Iterable[tf.Operation], inputs: Iterable[tf.Tensor]) -> bool:
    """Whether `operations`, run in order on `inputs` with the batch in front, mix samples."""
    axes = {t.ref(): 0 for t in inputs if t.shape.rank}
    try:
        for op in operations:
            carried = [axes.get(t.ref()) for t in op.inputs]
            if op.type in _SHAPES or all(axis is None for axis in carried):
                continue
            for tensor in op.outputs:
                axes[tensor.ref()] = _axis(op, carried, tensor)
    except _CoupledError:
        return True
    return False


def _axis(op: tf.Operation, carried: Sequence[Any], made: tf.Tensor) -> int:
    """The axis of the samples in an output; raises where they are mixed, or where it is not known."""
    first, axis = op.inputs[0], carried[0]
    if op.type in _ELEMENTWISE:
        ends = {axis - t.shape.rank for t, axis in zip(op.inputs, carried) if axis is not None}
        return made.shape.rank + _only(ends)
    if axis is None or any(other is not None for other in carried[1:]):
        return _several(op, carried, made)
    if op.type in _WINDOWS:
        return _unless(axis != 0, 0)
    if op.type in _REDUCTIONS:
        reduced = {int(d) % first.shape.rank for d in _constant(op.inputs[1]).ravel()}
        keeps = op.type not in ("ArgMax", "ArgMin") and op.get_attr("keep_dims")
        return _unless(axis in reduced, axis if keeps else axis - sum(d < axis for d in reduced))
    if op.type in ("Softmax", "LogSoftmax"):
        return _unless(axis == first.shape.rank - 1, axis)
    if op.type == "Transpose":
        return list(_constant(op.inputs[1])).index(axis)
    if op.type in ("Reshape", "Squeeze", "ExpandDims"):
        return _reshaped(first.shape.as_list(), made.shape.as_list(), axis)
    if op.type in _SAME_LENGTH:
        return _unless(made.shape.rank != first.shape.rank or made.shape[axis] != first.shape[axis], axis)
    if op.type == "MatMul":
        return _unless(axis != (1 if op.get_attr("transpose_a") else 0), 0)
    return _several(op, carried, made)


def _several(op: tf.Operation, carried: Sequence[Any], made: tf.Tensor) -> int:
    """Operations that may carry samples in any of their inputs."""
    if op.type == "ConcatV2":
        axis = _only({a for a in carried[:-1] if a is not None})
        return _unless(int(_constant(op.inputs[-1])) % made.shape.rank == axis, axis)
    if op.type in ("Conv2DBackpropInput", "Conv3DBackpropInputV2"):  # What a transposed convolution is.
        return _unless(carried[2] != 0, 0)
    if op.type == "GatherV2" and carried[0] is None:
        return carried[1]
    if op.type == "Split":
        return _unless(int(_constant(op.inputs[0])) % op.inputs[1].shape.rank == carried[1], carried[1])
    if op.type == "Einsum":
        terms, result = op.get_attr("equation").decode().split("->")
        letter = _only({term[axis] for term, axis in zip(terms.split(","), carried) if axis is not None})
        return _unless(letter not in result, result.find(letter))
    if op.type in ("BatchMatMulV2", "BatchMatMul"):
        rank = made.shape.rank
        ends = {axis - t.shape.rank for t, axis in zip(op.inputs, carried) if axis is not None}
        rows = carried[1] is None and not op.get_attr("adj_x") and ends == {-2}
        return _unless(not rows and _only(ends) >= -2, rank + _only(ends))
    raise _CoupledError


def _reshaped(before: Sequence[Any], after: Sequence[Any], axis: int) -> int:
    """The axis that starts where the samples started and holds whole samples, or parts of one sample each."""
    for i, length in enumerate(after):
        starts = math.prod(after[:i]) == math.prod(before[:axis])
        if starts and length > 1 and max(length, before[axis]) % min(length, before[axis]) == 0:
            return i
    raise _CoupledError


def _constant(tensor: tf.Tensor) -> np.ndarray:
    value = tf.get_static_value(tensor)
    if value is None:
        raise _CoupledError
    return np.asarray(value)


def _only(values: Collection[int]) -> int:
    if len(values) != 1:
        raise _CoupledError
    return next(iter(values))


def _unless(mixed: bool, axis: int) -> int:
    if mixed:
        raise _CoupledError
    return axis
