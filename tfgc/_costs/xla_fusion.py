"""Which results of a call take memory if XLA compiles the step.

XLA fuses elementwise operations into the kernels that read their results. A result that elementwise operations and
reductions alone read is *fused*: it takes no memory, and each of its readers computes it again from what it was made
of. Products, convolutions, pooling windows, gathers and sorts read memory; so do they write it, and so do reductions.
(`instruction_fusion` and `priority_fusion` in openxla/xla: a producer is fused into all of its readers or into none.)
"""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any, cast

import numpy as np
import tensorflow as tf

from tfgc._costs import xla_masks
from tfgc._costs.call_operations import Operations
from tfgc._costs.tensor_buffers import IN_PLACE, Buffers, renamed, tensor_bytes
from tfgc._step.flop_counts import SHAPE_ONLY

ELEMENTWISE = (IN_PLACE - {"Erf", "Erfc", "LogSoftmax", "Softmax"}) | {
    "BroadcastTo", "Cast", "ConcatV2", "Cos", "Equal", "ExpandDims", "Expm1", "Fill", "FloorDiv", "FloorMod", "Greater",
    "GreaterEqual", "IsFinite", "IsNan", "LeakyRelu", "Less", "LessEqual", "LogicalOr", "MirrorPad", "NotEqual", "Pack",
    "Pad", "PadV2", "Range", "Sin", "Slice", "Split", "SplitV", "StridedSlice", "StridedSliceGrad", "Tile",
    "Transpose", "Unpack",
}  # fmt: skip
# What these make is written. Error functions are elementwise, but too dear to be computed twice.
_READS_FUSED = frozenset(["All", "Any", "ArgMax", "BiasAddGrad", "Erf", "Erfc", "Max", "Mean", "Min", "Prod", "Sum"])
# Their gradients read their results, of which XLA's simplifier needs the sign alone: that of the operand does as well.
_BY_SIGN = {"ReluGrad": "Relu"}
_CONVOLUTIONS = frozenset(["Conv2D", "Conv3D", "DepthwiseConv2dNative"])
PADS = frozenset(["MirrorPad", "Pad", "PadV2"])
_ROWS = 4096  # that one kernel sums up, over all dimensions but the last


@dataclasses.dataclass(frozen=True)
class FusedOutput:
    """An output that takes no memory unless an operation of another call reads it from there."""

    inputs: tuple[int, ...]  # positions of those that it is made of
    saved: tuple[int, ...]  # which of the buffers that the call saves inside it is made of, by position among them
    masks: tuple[tuple[int, int], ...]  # the same, with numbers of elements, if they are compared random numbers alone
    inside: bool  # whether it is made of a buffer inside the call, for which the output stands then
    operation: str  # the type of the operation that makes it


class Fusion:
    """What XLA fuses in one call; buffers that are fused count as nothing from now on."""

    def __init__(
        self, operations: Operations, buffers: Buffers, inputs: Sequence[tf.Tensor], outputs: Sequence[tf.Tensor]
    ) -> None:
        self._operations, self._buffers = operations, buffers
        self._ends = {t.ref() for t in (*inputs, *outputs)}
        self._beyond = operations.free | operations.after_upstream  # never kept
        self._readers: dict[Any, list[str]] = {}
        for op in (*operations.early, *operations.late):
            if op.type in SHAPE_ONLY or any(renamed(t) is not None for t in op.outputs):
                continue
            for t in op.inputs:
                self._readers.setdefault(buffers.root(t).ref(), []).append(op.type)
        counted = self._ends | {buffers.root(t).ref() for t in operations.gradients}
        for op in (*operations.early, *operations.late):
            for t in op.outputs:
                root = buffers.root(t)
                if root.ref() not in counted and self._is_fused(root):
                    buffers.fuse(root)

    def reads_memory(self, tensor: tf.Tensor) -> bool:
        """Whether an operation of the call needs a tensor in memory."""
        return any(
            kind not in ELEMENTWISE and kind not in _READS_FUSED and kind not in _BY_SIGN
            for kind in self._readers.get(tensor.ref(), ())
        )

    def read_by(self, op: tf.Operation) -> Iterable[tf.Tensor]:
        """The buffers that an operation reads, or that what it reads is computed from again."""
        return self.behind(self._operands(op))

    def difference_of(self, op: tf.Operation) -> int:
        """Bytes of a deviation from a mean that is written: the backward pass reads it, and one kernel sums it up.

        Over more rows XLA sums up in two kernels, and computes deviations again (`tree_reduction_rewriter`).
        """
        written = op.type == "SquaredDifference" and any(map(_sums_few_rows, op.outputs[0].consumers()))
        return tensor_bytes(op.inputs[0]) if written and self._operations.late else 0

    def copied_weights(self) -> int:
        """What copies of the weights of convolutions take, from the start of the step to its end.

        XLA transposes them once, and puts copies in the place of weights that it has transposed, where they fit: in
        networks that were compiled about half of them took memory. Kernels of products read weights in either order.
        """
        weights: dict[Any, int] = {}
        for op in self._operations.forward:
            if op.type in _CONVOLUTIONS:
                read = self._buffers.root(op.inputs[1])
                if read.op in self._operations.free:
                    # Calls of one layer each read its weight.
                    place = read.op.inputs[0] if read.op.type == "ReadVariableOp" else read
                    weights[place.ref()] = tensor_bytes(op.inputs[1])
        return sum(weights.values()) // 2

    def zeros_of(self, op: tf.Operation) -> int:
        """What the gradient of a pooling takes from the forward pass on, where its windows overlap.

        It scatters into zeros of the input's size. XLA makes them, and a copy, in a kernel of the forward pass that
        writes as many numbers, though it needs them in the backward pass alone.
        """
        if op.type != "MaxPool" or not self._operations.late or op.get_attr("ksize") == op.get_attr("strides"):
            return 0
        return 2 * self._buffers.bytes(self._buffers.root(op.inputs[0]))

    def output(self, root: tf.Tensor, inputs: Sequence[tf.Tensor], saved: Sequence[Any]) -> FusedOutput | None:
        """What an output is computed from again, or None if it takes memory here already."""
        if not self._is_fused(root):
            return None
        behind = {t.ref(): self._buffers.bytes(t) for t in self.behind(root.op.inputs)}
        given = {t.ref() for t in inputs}
        # Next to what is as large as the output, means and variances count as nothing.
        large = {ref for ref, size in behind.items() if ref not in given and 2 * size >= self._buffers.bytes(root)}
        return FusedOutput(
            inputs=tuple(i for i, t in enumerate(inputs) if t.ref() in behind),
            saved=tuple(i for i, ref in enumerate(saved) if ref in large),
            masks=xla_masks.of_draws({i: ref.deref() for i, ref in enumerate(saved) if ref in large}, len(large)),
            inside=bool(large),
            operation=root.op.type,
        )

    def _is_fused(self, root: tf.Tensor) -> bool:
        return (
            root.op.type in ELEMENTWISE
            and not self.reads_memory(root)
            and not xla_masks.is_of_softmax(root, self._beyond)
        )

    def behind(self, tensors: Iterable[tf.Tensor]) -> list[tf.Tensor]:
        """What takes memory of that which tensors are computed from again; what takes memory itself as it is."""
        found: dict[Any, tf.Tensor] = {}
        seen: set[Any] = set()
        stack = list(tensors)
        while stack:
            root = self._buffers.root(stack.pop())
            if root.ref() in seen or root.op in self._beyond or root.op.type in SHAPE_ONLY:
                continue
            seen.add(root.ref())
            if root.ref() in self._ends or not self._is_fused(root):
                found[root.ref()] = root
            else:
                stack += self._operands(root.op)
        return list(found.values())

    def _operands(self, op: tf.Operation) -> Iterable[tf.Tensor]:
        """What an operation reads: in place of an activation of which the sign is enough, what that is made of."""
        for t in op.inputs:
            root = self._buffers.root(t)
            yield from root.op.inputs if root.op.type == _BY_SIGN.get(op.type, "") else (t,)


def _sums_few_rows(op: tf.Operation) -> bool:
    """Whether an operation reduces all dimensions but the last, in one kernel."""
    if op.type not in ("Mean", "Sum"):
        return False
    axes, shape = tf.get_static_value(op.inputs[1]), op.inputs[0].shape
    if axes is None or not shape.is_fully_defined():
        return False
    sizes = cast(list[int], shape.as_list())
    reduced = {int(axis) % len(sizes) for axis in np.ravel(axes)}
    return len(sizes) - 1 not in reduced and math.prod(sizes[axis] for axis in reduced) <= _ROWS
