"""Which tensors of a graph share a buffer, its bytes, and how buffers come and go while its operations run.

An operation that only renames its input makes no buffer; an elementwise one reuses that of an input that dies there, as
TensorFlow's kernels do.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfgc._step.flop_counts import SHAPE_ONLY
from tfgc._step.single_tensors import renamed, tensor_bytes
from tfgc._step.stored_variants import Variants

IN_PLACE = frozenset(
    ["Add", "AddV2", "AddN", "Sub", "Mul", "RealDiv", "DivNoNan", "BiasAdd", "Neg", "Exp", "Log", "Log1p", "Abs"]
    + ["Sign", "Relu", "Relu6", "ReluGrad", "Relu6Grad", "LeakyRelu", "LeakyReluGrad", "Elu", "EluGrad", "Selu"]
    + ["SeluGrad", "Tanh", "TanhGrad", "Sigmoid", "SigmoidGrad", "Softplus", "SoftplusGrad", "Softsign", "Softmax"]
    + ["LogSoftmax", "Square", "SquaredDifference", "Sqrt", "SqrtGrad", "Rsqrt", "RsqrtGrad", "Reciprocal", "Erf"]
    + ["Erfc", "Pow", "Maximum", "Minimum", "SelectV2", "ClipByValue", "Floor", "Round", "LogicalAnd", "LogicalNot"]
    + ["Xdivy", "Xlogy"]
)
# These write the gradient, the larger of their outputs, over the logits.
_CROSSENTROPIES = frozenset(["SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits"])


class Buffers:
    """Which tensors of a graph share a buffer, and the bytes of each.

    Gradients of weights count as nothing, since they are counted apart, unless they are among the `upstream` gradients.
    Tensors whose first size alone is not known have so many `rows`.
    """

    def __init__(
        self,
        graph: Any,
        weight_gradients: Iterable[tf.Tensor],
        upstream: Sequence[tf.Tensor],
        rows: int | None = None,
    ) -> None:
        self._rows = rows
        self._variants = Variants(rows)
        returned = self._variants.returned(graph.get_operations())
        self._roots: dict[Any, tf.Tensor] = {optional.ref(): output for optional, output in returned}
        counted = {t.ref() for t in upstream}
        roots = (self.root(g).ref() for g in weight_gradients)
        self._sizes = {ref: 0 for ref in roots if ref not in counted}

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
            variants = self._variants
            rows = variants.length(tensor) or self._rows
            self._sizes[key] = variants.bytes(tensor) if tensor.dtype == tf.variant else tensor_bytes(tensor, rows)
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


def is_in_place(op: tf.Operation) -> bool:
    """Whether an operation writes an output over an input of that size that nothing else holds."""
    return op.type in IN_PLACE or op.type in _CROSSENTROPIES


def writes_gradient_over(logits: tf.Tensor, operations: Collection[tf.Operation]) -> bool:
    """Whether one of these operations alone reads a tensor, and writes the gradient of a crossentropy over it.

    Other losses write over their output, too, but TensorFlow computes their gradient beside the value, in a new buffer.
    """
    readers = [op for op in logits.consumers() if op in operations and op.type not in SHAPE_ONLY]
    if len(readers) != 1:
        return False
    made = readers[0].outputs
    if made and renamed(made[0]) is logits:
        return writes_gradient_over(made[0], operations)
    return readers[0].type in _CROSSENTROPIES and readers[0].inputs[0] is logits


def _overwritten(
    op: tf.Operation, output: tf.Tensor, buffers: Buffers, alive: Mapping[Any, int], dying: Sequence[Any]
) -> Any:
    """The input whose buffer an in-place operation reuses for an output, or None."""
    read = (buffers.root(t).ref() for t in op.inputs) if is_in_place(op) else ()
    return next((r for r in read if r in alive and r in dying and alive[r] == buffers.bytes(output)), None)
