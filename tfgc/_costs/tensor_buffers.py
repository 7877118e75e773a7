"""Which tensors of a graph share a buffer, and how buffers come and go while its operations run.

An operation that only renames its input makes no buffer; an elementwise one reuses that of an input that dies there, as
TensorFlow's kernels do.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfgc._costs import tensor_lists
from tfgc._pure.flop_counts import SHAPE_ONLY, VIEWS

IN_PLACE = frozenset(
    ["Add", "AddV2", "AddN", "Sub", "Mul", "RealDiv", "DivNoNan", "BiasAdd", "Neg", "Exp", "Log", "Log1p", "Abs"]
    + ["Sign", "Relu", "Relu6", "ReluGrad", "Relu6Grad", "LeakyRelu", "LeakyReluGrad", "Elu", "EluGrad", "Selu"]
    + ["SeluGrad", "Tanh", "TanhGrad", "Sigmoid", "SigmoidGrad", "Softplus", "SoftplusGrad", "Softsign", "Softmax"]
    + ["LogSoftmax", "Square", "SquaredDifference", "Sqrt", "SqrtGrad", "Rsqrt", "RsqrtGrad", "Reciprocal", "Erf"]
    + ["Erfc", "Pow", "Maximum", "Minimum", "SelectV2", "ClipByValue", "Floor", "Round", "LogicalAnd", "LogicalNot"]
    + ["Xdivy", "Xlogy"]
)


class Buffers:
    """Which tensors of a graph share a buffer, and the bytes of each.

    Gradients of weights count as nothing, since they are counted apart, unless they are among the `upstream` gradients.
    """

    def __init__(self, graph: Any, weight_gradients: Iterable[tf.Tensor], upstream: Sequence[tf.Tensor]) -> None:
        self._roots: dict[Any, tf.Tensor] = {}
        counted = {t.ref() for t in upstream}
        roots = (self.root(g).ref() for g in weight_gradients)
        self._sizes = {ref: 0 for ref in roots if ref not in counted}
        self._gains = tensor_lists.gains_in_loops(graph)

    def root(self, tensor: tf.Tensor) -> tf.Tensor:
        """The tensor that `tensor` renames, or itself."""
        key = tensor.ref()
        if key not in self._roots:
            source = renamed(tensor)
            self._roots[key] = tensor if source is None else self.root(source)
        return self._roots[key]

    def bytes(self, tensor: tf.Tensor) -> int:
        """Bytes of the buffer that a tensor which renames no other one has."""
        key = tensor.ref()
        if key not in self._sizes:
            lists = tensor.dtype == tf.variant
            size = tensor_lists.list_bytes(tensor, self._gains) if lists else tensor_lists.tensor_bytes(tensor)
            self._sizes[key] = size
        return self._sizes[key]

    def fuse(self, tensor: tf.Tensor) -> None:
        """Count the buffer of a tensor as nothing from now on."""
        self._sizes[tensor.ref()] = 0


def trace(
    operations: Sequence[tf.Operation],
    buffers: Buffers,
    there: Mapping[Any, int],
    stays: Iterable[Any],
    while_running: Mapping[tf.Operation, int],
) -> tuple[int, ...]:
    """Signed bytes of the buffers that come and go while `operations` run, in order.

    `while_running` are bytes that operations take besides. `there` are bytes of buffers that are there before, by
    tensor; buffers of the tensors `stays` do not go.
    """
    last: dict[Any, int] = {}
    for i, op in enumerate(operations):
        if op.type not in SHAPE_ONLY:
            last.update((buffers.root(t).ref(), i) for t in op.inputs)
        for t in op.outputs:
            last.setdefault(buffers.root(t).ref(), i)
    ends: dict[int, list[Any]] = {}
    for ref, i in last.items():
        ends.setdefault(i, []).append(ref)
    alive, signed = dict(there), []
    for i, op in enumerate(operations):
        dying = [ref for ref in ends.get(i, ()) if ref not in stays]
        for t in op.outputs:
            if renamed(t) is not None:
                continue
            overwritten = _overwritten(op, t, buffers, alive, dying)
            if overwritten is not None:
                del alive[overwritten]
            elif buffers.bytes(t):
                signed.append(buffers.bytes(t))
            alive[t.ref()] = buffers.bytes(t)
        signed += [while_running[op], -while_running[op]] if op in while_running else []
        for ref in dying:
            if ref in alive:
                size = alive.pop(ref)
                signed += [-size] if size else []
    return tuple(signed)


def _overwritten(
    op: tf.Operation, output: tf.Tensor, buffers: Buffers, alive: Mapping[Any, int], dying: Sequence[Any]
) -> Any:
    """The input whose buffer an in-place operation reuses for an output, or None."""
    if op.type in IN_PLACE:
        for t in op.inputs:
            ref = buffers.root(t).ref()
            if ref in alive and ref in dying and alive[ref] == buffers.bytes(output):
                return ref
    return None


def renamed(tensor: tf.Tensor) -> tf.Tensor | None:
    """The tensor whose buffer `tensor` merely renames, or None."""
    op = tensor.op
    if op.type in VIEWS:
        return op.inputs[0]
    if op.type == "IdentityN":
        return op.inputs[tensor.value_index]
    if op.type == "Mul":
        # TensorFlow's optimizer drops a multiplication by one, such as the beta of silu.
        for one, other in ((0, 1), (1, 0)):
            scalar = op.inputs[one].shape.rank == 0 and op.inputs[one].op.type == "Const"
            if scalar and tf.get_static_value(op.inputs[one]) == 1:
                return op.inputs[other]
    return None
