"""Whether a call mixes the samples of a batch, read from its forward operations.

For each tensor this keeps the axis on which its samples lie, or None where it holds none. It holds them in order, each
in as many neighbouring places as the others. An operation that sums, sorts or joins across that axis couples samples,
as BatchNormalization does; so, to be safe, does one that is not known here, such as a loop.
"""

import math
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfgc._costs.tensor_buffers import IN_PLACE

_ELEMENTWISE = (IN_PLACE - {"LogSoftmax", "Softmax"}) | {
    "Cast", "Ceil", "CheckNumerics", "Cos", "Equal", "Expm1", "FloorDiv", "FloorMod", "Greater", "GreaterEqual",
    "Identity", "IsNan", "Less", "LessEqual", "LogicalOr", "NotEqual", "OnesLike", "PreventGradient", "Sin",
    "StopGradient", "ZerosLike",
}  # fmt: skip
_WINDOWS = frozenset(
    ["Conv2D", "Conv3D", "DepthwiseConv2dNative", "MaxPool", "MaxPool3D", "AvgPool", "AvgPool3D", "ResizeBilinear"]
    + ["ResizeNearestNeighbor", "ResizeBicubic", "SpaceToDepth", "DepthToSpace", "Dilation2D", "LRN"]
)
_REDUCTIONS = frozenset(["Sum", "Mean", "Max", "Min", "Prod", "Any", "All", "ArgMax", "ArgMin", "EuclideanNorm"])
_SAME_LENGTH = frozenset(["Slice", "Pad", "PadV2", "MirrorPad", "Tile", "BroadcastTo"])
_DRAWS = frozenset(
    ["StatelessRandomUniformV2", "StatelessRandomNormalV2", "StatelessTruncatedNormalV2", "StatelessRandomUniformIntV2"]
    + ["RandomUniform", "RandomStandardNormal", "TruncatedNormal", "RandomUniformInt"]
)


class _CoupledError(Exception):
    pass


def couples(operations: Iterable[tf.Operation], inputs: Iterable[tf.Tensor], outputs: Iterable[tf.Tensor] = ()) -> bool:
    """Whether `operations`, run in order on `inputs` with the batch in front, mix samples, or may do so.

    So does an output, or an input, without the batch in front. A batch of one sample does not show where samples are.
    """
    axes: dict[Any, Any] = {t.ref(): 0 for t in inputs}
    first = {ref.deref().shape[0] if ref.deref().shape.rank else None for ref in axes}
    batch = first.pop() if len(first) == 1 else None
    if batch is None or batch < 2:
        return True
    try:
        for op in operations:
            carried = [axes.get(t.ref()) for t in op.inputs]
            if op.type in _DRAWS and op.outputs[0].shape.rank:  # Each sample has random numbers that no other has.
                mixed = any(axis is not None for axis in carried) or op.outputs[0].shape[0] != batch
                axes[op.outputs[0].ref()] = _unless(mixed, 0)
            elif op.type in ("Shape", "ShapeN", "Rank", "Size") or all(axis is None for axis in carried):
                continue
            elif op.type == "IdentityN":
                axes.update((made.ref(), axis) for made, axis in zip(op.outputs, carried) if axis is not None)
            else:
                for tensor in op.outputs:
                    axes[tensor.ref()] = axis = _axis(op, carried, tensor, batch)
                    _check_equal_for_all(op, carried, axis - tensor.shape.rank)
    except (_CoupledError, TypeError, ValueError, IndexError):  # Sizes that are not known cannot be counted with.
        return True
    return any(axes.get(t.ref()) != 0 or t.shape[0] != batch for t in outputs)


def _axis(op: tf.Operation, carried: Sequence[Any], made: tf.Tensor, batch: int) -> int:
    """The axis of the samples in an output; raises where they are mixed, or where it is not known."""
    first, axis = op.inputs[0], carried[0]
    if op.type == "BiasAdd" and op.get_attr("data_format") == b"NCHW":  # The bias lies along axis 1.
        return _unless(list(carried) != [0, None], 0)
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
        return list(_constant(op.inputs[1]) % first.shape.rank).index(axis)
    if op.type in ("Reshape", "Squeeze", "ExpandDims"):
        return _reshaped(first.shape.as_list(), made.shape.as_list(), axis, batch)
    if op.type == "StridedSlice":
        return _sliced(op, axis)
    if op.type == "ReverseV2":
        return _unless(axis in {int(d) % first.shape.rank for d in _constant(op.inputs[1]).ravel()}, axis)
    if op.type in _SAME_LENGTH:
        return _unless(made.shape.rank != first.shape.rank or made.shape[axis] != first.shape[axis], axis)
    if op.type == "MatMul":
        return _unless(axis != (1 if op.get_attr("transpose_a") else 0), 0)
    return _several(op, carried, made)


def _several(op: tf.Operation, carried: Sequence[Any], made: tf.Tensor) -> int:
    """Operations that may carry samples in any of their inputs."""
    first = op.inputs[0]
    if op.type == "ConcatV2":
        axis = _only({a for a in carried[:-1] if a is not None})
        return _unless(int(_constant(op.inputs[-1])) % made.shape.rank == axis, axis)
    if op.type in ("Conv2DBackpropInput", "Conv3DBackpropInputV2"):  # What a transposed convolution is.
        return _unless(list(carried) != [None, None, 0], 0)
    if op.type == "GatherV2" and carried[0] is None:
        return _unless(op.get_attr("batch_dims") != 0, int(_constant(op.inputs[2])) % first.shape.rank + carried[1])
    if op.type == "MatMul" and carried[0] is None:
        return _unless(carried[1] != (0 if op.get_attr("transpose_b") else 1), 1)
    if op.type == "Split":
        return _unless(int(_constant(op.inputs[0])) % op.inputs[1].shape.rank == carried[1], carried[1])
    if op.type == "Einsum":
        return _summed(op, carried)
    if op.type in ("BatchMatMulV2", "BatchMatMul"):
        rank = made.shape.rank
        ends = {axis - t.shape.rank for t, axis in zip(op.inputs, carried) if axis is not None}
        rows = carried[1] is None and not op.get_attr("adj_x") and ends == {-2}
        return _unless(not rows and _only(ends) >= -2, rank + _only(ends))
    raise _CoupledError


def _summed(op: tf.Operation, carried: Sequence[Any]) -> int:
    """The axis of the samples in the result of an `Einsum`: a letter names it, or an ellipsis starts with it."""
    terms, result = op.get_attr("equation").decode().replace("...", ".").split("->")
    _unless("." in terms and any(carried), 0)  # Letters behind an ellipsis do not tell axes.
    operands = list(zip(terms.split(","), op.inputs, carried))
    letter = _only({term[axis] for term, _, axis in operands if axis is not None})
    # An operand without samples that has their letter may differ from one to another; twice, it takes a diagonal.
    mixed = any(term.count(letter) != (axis is not None) for term, _, axis in operands) or result.count(letter) != 1
    starts = {t.shape.rank - len(term) for term, t, axis in operands if axis is not None and letter == "."}
    of_none = any(start < 0 for start in starts)  # The ellipsis stands for no axis.
    return _unless(mixed or of_none or len(starts) > 1 or ("." in terms and result[0] != letter), result.find(letter))


def _check_equal_for_all(op: tf.Operation, carried: Sequence[Any], end: int) -> None:
    """Raise if an operand that holds no samples differs from place to place along theirs, as `tf.range` does."""
    of_matrices = op.type in ("BatchMatMulV2", "BatchMatMul") and end < -2
    if op.type in _ELEMENTWISE or op.type == "ConcatV2" or of_matrices:
        for tensor, axis in zip(op.inputs, carried):
            _unless(axis is None and not _is_equal_along(tensor, end), 0)


def _is_equal_along(tensor: tf.Tensor, end: int) -> bool:
    while tensor.op.type == "BroadcastTo":
        tensor = tensor.op.inputs[0]
    if tensor.op.type == "Fill" or (tensor.shape.rank or 0) < -end or tensor.shape[end] == 1:
        return True
    value = tf.get_static_value(tensor)
    return value is not None and not np.any(np.diff(np.asarray(value, float), axis=end))


def _sliced(op: tf.Operation, axis: int) -> int:
    """The axis of the samples behind a slice by a NumPy index, which takes all of them in their order."""
    given, made = op.inputs[0].shape, op.outputs[0].shape
    entries, source, target = len(_constant(op.inputs[3])), 0, 0
    added = bin(op.get_attr("new_axis_mask") & ((1 << entries) - 1)).count("1")
    for i in range(entries):
        if op.get_attr("new_axis_mask") >> i & 1:
            target += 1
            continue
        covered = given.rank - (entries - added - 1) if op.get_attr("ellipsis_mask") >> i & 1 else 1
        shrunk = bool(op.get_attr("shrink_axis_mask") >> i & 1)
        if source <= axis < source + covered:
            whole = covered > 1 or (int(_constant(op.inputs[3])[i]) == 1 and not shrunk)
            target += axis - source
            return _unless(not whole or made[target] != given[axis], target)
        source += covered
        target += 0 if shrunk else covered
    return target + axis - source


def _reshaped(before: Sequence[Any], after: Sequence[Any], axis: int, batch: int) -> int:
    """The axis that starts where the samples started, and holds one place for each, or as many for each."""
    for i, length in enumerate(() if None in [*before, *after] else after):
        starts = math.prod(after[:i]) == math.prod(before[:axis])
        if starts and length >= batch and length % batch == 0:
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
