"""Floating-point operations of one TensorFlow operation, from its static shapes."""

import math

import tensorflow as tf

VIEWS = frozenset(
    ["Identity", "StopGradient", "PreventGradient", "Reshape", "Squeeze", "ExpandDims", "CheckNumerics", "Bitcast"]
)
SHAPE_ONLY = frozenset(["Shape", "ShapeN", "Rank", "Size", "ZerosLike", "OnesLike", "BroadcastGradientArgs"])


def flops(op: tf.Operation) -> int:
    """Floating-point operations of one op; one for each element, except for products and convolutions."""
    made = [t for t in op.outputs if t.shape.num_elements() is not None and t.dtype != tf.variant]
    if not made or op.type in VIEWS or op.type in SHAPE_ONLY:
        return 0
    count = made[0].shape.num_elements()
    if "Conv2D" in op.type or "Conv3D" in op.type or "DepthwiseConv" in op.type:
        return 2 * _products(op)
    if op.type in ("MatMul", "BatchMatMulV2", "BatchMatMul", "BatchMatMulV3"):
        flipped = op.get_attr("transpose_a" if op.type == "MatMul" else "adj_x")
        return 2 * count * (op.inputs[0].shape[-2 if flipped else -1] or 1)
    if op.type == "Einsum":
        terms = op.get_attr("equation").decode().partition("->")[0].split(",")
        sizes: dict[str, int | None] = {}
        for term, tensor in zip(terms, op.inputs):
            sizes.update(zip(term, tensor.shape.as_list()))
        return 2 * math.prod(d or 1 for d in sizes.values())
    return count


def _products(op: tf.Operation) -> int:
    """Multiplications of a convolution or of one of its gradients: those of its forward pass."""
    if op.type.endswith("BackpropInput") or op.type.endswith("BackpropInputV2"):
        kernel, made = op.inputs[1].shape, op.inputs[2].shape
    elif op.type.endswith("BackpropFilter") or op.type.endswith("BackpropFilterV2"):
        kernel, made = op.outputs[0].shape, op.inputs[2].shape
    else:
        kernel, made = op.inputs[1].shape, op.outputs[0].shape
    per_output = kernel[:-2] if "Depthwise" in op.type else kernel[:-1]
    return made.num_elements() * per_output.num_elements()
