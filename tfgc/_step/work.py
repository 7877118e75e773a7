"""What an operation takes: its floating-point operations, or the bytes that it moves if these take longer.

A roofline (Williams, Waterman & Patterson, 2009) with one balance for all machines: it ranks copies of a step, and
predicts no time.
"""

import math
from collections.abc import Sequence

import tensorflow as tf

from tfgc._step.step import VIEWS

# Floating-point operations that a processor does while it moves a byte: 5 to 15 on CPUs, 10 to 40 on GPUs (float32).
_BALANCE = 10
_MATRIX_PRODUCTS = frozenset(["MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"])
_SHAPE_ONLY = frozenset(["Shape", "ShapeN", "Rank", "Size", "ZerosLike", "OnesLike", "BroadcastGradientArgs"])


def work(op: tf.Operation, rows: int | None) -> int:
    """Work of one operation; an open size counts as `rows`."""
    if op.type in VIEWS or not op.outputs:
        return 0
    read = op.inputs[:2] if op.type == "AddN" else op.inputs  # sums of more are chains
    moved = sum(tensor_bytes(t, rows) for t in (*read, *op.outputs))
    return max(_flops(op), _BALANCE * moved)


def tensor_bytes(tensor: tf.Tensor, rows: int | None) -> int:
    """Bytes of a tensor; an open size counts as `rows`, and what has none to count as 0."""
    if tensor.shape.rank is None or tensor.dtype in (tf.resource, tf.variant, tf.string):
        return 0
    return math.prod(size or rows or 1 for size in tensor.shape) * tensor.dtype.size


def rows_of(shapes: Sequence[tf.TensorShape]) -> int | None:
    """The samples of the first tensor that has any."""
    return next((shape[0] for shape in shapes if shape.rank and shape[0] is not None), None)


def _flops(op: tf.Operation) -> int:
    """Floating-point operations of one op; one for each element, except for products and convolutions."""
    made = [t for t in op.outputs if t.shape.num_elements() is not None and t.dtype != tf.variant]
    if not made or op.type in _SHAPE_ONLY:
        return 0
    if op.type == "Einsum":
        return 2 * math.prod(_einsum_sizes(op).values())
    count = made[0].shape.num_elements()
    if _is_convolution(op):
        return 2 * _convolved(op)
    return 2 * count * _inner(op) if op.type in _MATRIX_PRODUCTS else count


def _is_convolution(op: tf.Operation) -> bool:
    return "Conv2D" in op.type or "Conv3D" in op.type or "DepthwiseConv" in op.type


def _inner(op: tf.Operation) -> int:
    names = ("transpose_a", "transpose_b") if op.type == "MatMul" else ("adj_x", "adj_y")
    (first, second), (turned, second_turned) = op.inputs, map(op.get_attr, names)
    # Of a sequence that was reshaped, weights alone know it.
    return first.shape[-2 if turned else -1] or second.shape[-1 if second_turned else -2] or 1


def _einsum_sizes(op: tf.Operation) -> dict[str, int]:
    """The size of each letter, and of each axis that an ellipsis stands for, counted from the last one; 1 if open."""
    terms = op.get_attr("equation").decode().replace("...", ".").partition("->")[0].split(",")
    sizes: dict[str, int] = {}
    for term, tensor in zip(terms, op.inputs):
        before, _, behind = term.partition(".")
        covered = tensor.shape.rank - len(before) - len(behind)
        labels = [*before, *(f".{i}" for i in range(covered, 0, -1)), *behind]
        for label, size in zip(labels, tensor.shape.as_list()):
            sizes[label] = max(size or 1, sizes.get(label, 1))
    return sizes


def _kernel_elements(op: tf.Operation, kernel: tf.TensorShape) -> int | None:
    """Elements of the kernel that one element of the result is made of."""
    return (kernel[:-2] if "Depthwise" in op.type else kernel[:-1]).num_elements()


def _convolved(op: tf.Operation) -> int:
    """Multiplications of a convolution or of one of its gradients: those of its forward pass; 0 if sizes are open."""
    if op.type.endswith("BackpropInput") or op.type.endswith("BackpropInputV2"):
        kernel, made = op.inputs[1].shape, op.inputs[2].shape
    elif op.type.endswith("BackpropFilter") or op.type.endswith("BackpropFilterV2"):
        kernel, made = op.outputs[0].shape, op.inputs[2].shape
    else:
        kernel, made = op.inputs[1].shape, op.outputs[0].shape
    return (made.num_elements() or 0) * (_kernel_elements(op, kernel) or 0)
