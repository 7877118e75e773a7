"""What XLA's compiler for GPUs takes for matrix products besides operands and results.

A product of few rows and columns keeps too few of a GPU's cores busy, so XLA computes it in parts, of as many numbers
each as the result has, and adds them up wherever the result is read. The choice is that of `splitk_rewriter` in
openxla/xla, as of 2026, for an H100: the time of the product and of adding up, by its weights.

Its own kernels compute products in tiles of 16 rows and columns. In a step where attention does not fit into those,
cuBLAS computes all products, in a workspace, and those of one activation together: their weights are copied into one
tensor, which is there in the backward pass, too (`dot_merger`).
"""

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tfgc._costs.call_operations import Operations
from tfgc._costs.tensor_buffers import Buffers, tensor_bytes
from tfgc._costs.xla_fusion import ELEMENTWISE
from tfgc._step.flop_counts import MATRIX_PRODUCTS, VIEWS, multiplications_per_element

_PRODUCTS = MATRIX_PRODUCTS | {"Einsum"}
_BATCHED = _PRODUCTS - {"MatMul"}
_CORES, _TILE, _ALIGNED = 132, 128, 16
# Units of cost for a floating-point operation of a tile, a byte, a byte of the parts, and the start of adding up.
_OPERATION, _BYTE, _PART, _START = 100.0, 0.194136, 193.1384, 4.36e7
_MOST = 2048
# Rows of the smallest tile, and bytes of the workspace of cuBLAS (`gemm_rewriter` in openxla/xla, on Hopper).
_LEAST_TILE, _WORKSPACE = 16, 32 << 20


def parts(op: tf.Operation) -> int:
    """In how many parts XLA computes a product; 1 for other operations, and where sizes are open."""
    sizes = _sizes(op)
    if sizes is None:
        return 1
    candidates = [2**i for i in range(_MOST.bit_length())]
    return min(candidates, key=lambda count: _cost(*sizes, op.inputs[0].dtype.size, count))


def is_untiled(operations: Iterable[tf.Operation]) -> bool:
    """Whether one of them is the softmax of attention to a number of positions that is no multiple of a tile's."""
    scores = [op.inputs[0] for op in operations if op.type == "Softmax" and (op.inputs[0].shape.rank or 0) > 3]
    return any((t.shape[-1] or 0) % _LEAST_TILE and _is_of_batched_product(t) for t in scores)


def _is_of_batched_product(tensor: tf.Tensor, steps: int = 6) -> bool:
    """Whether a tensor is a product of activations, masked and scaled in as few steps as a layer takes."""
    op = tensor.op
    if op.type in _BATCHED:
        return True
    return (
        bool(steps) and op.type in ELEMENTWISE | VIEWS and any(_is_of_batched_product(t, steps - 1) for t in op.inputs)
    )


def workspaces(operations: Iterable[tf.Operation]) -> dict[tf.Operation, int]:
    """Bytes that cuBLAS takes for each product among operations."""
    return {op: _WORKSPACE for op in operations if op.type in _PRODUCTS}


def merged_weights(operations: Operations, buffers: Buffers) -> int:
    """Bytes of the weights of products that read one activation, which is what their copies take with cuBLAS."""
    read: dict[Any, list[int]] = defaultdict(list)
    for op in operations.forward:
        if op.type in _PRODUCTS and len(op.inputs) == 2 and buffers.root(op.inputs[1]).op in operations.free:
            read[buffers.root(op.inputs[0]).ref()].append(tensor_bytes(op.inputs[1]))
    return sum(sum(sizes) for sizes in read.values() if len(sizes) > 1)


def while_running(operations: Iterable[tf.Operation]) -> dict[tf.Operation, int]:
    """Bytes that products take besides results and operands: more parts than one, and operands that parts do not fit.

    XLA pads the operands to parts of whole multiples of 16 bytes, and stores the padded ones.
    """
    found = {op: _besides(op) for op in operations}
    return {op: size for op, size in found.items() if size}


def _besides(op: tf.Operation) -> int:
    count = parts(op)
    if count == 1:
        return 0
    inner, element = multiplications_per_element(op), op.inputs[0].dtype.size
    step = count * max(_ALIGNED // element, 1)
    padded = math.ceil(inner / step) * step
    operands = 0 if padded == inner else sum(map(tensor_bytes, op.inputs[:2])) * padded // inner
    return (count - 1) * tensor_bytes(op.outputs[0]) + operands


def _sizes(op: tf.Operation) -> tuple[int, int, int, int] | None:
    """How many products an operation computes, their rows and columns, and over how many numbers each sums."""
    if op.type not in _PRODUCTS or len(op.inputs) != 2:
        return None
    counts = [t.shape.num_elements() for t in (*op.inputs, op.outputs[0])]
    if not all(counts):
        return None
    (left, right, made), inner = counts, multiplications_per_element(op)
    batch = max(left * right // (inner * inner * made), 1)
    return batch, left // (inner * batch), right // (inner * batch), inner


def _cost(batch: int, rows: int, columns: int, inner: int, element: int, count: int) -> float:
    tiles = batch * count * math.ceil(rows / _TILE) * math.ceil(columns / _TILE)
    tile = min(rows, _TILE) * min(columns, _TILE)
    waves = max(1.0, tiles * tile / (_CORES * _TILE * _TILE))
    computed = 2.0 * tile * math.ceil(inner / count) * waves * _OPERATION
    made = batch * rows * columns * element
    read = batch * inner * (rows + columns) * element
    product = max(computed, (read + made * count) * _BYTE)
    return product if count == 1 else product + _START + made * (count + 1) * _PART
