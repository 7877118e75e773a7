"""What kernels of TensorFlow allocate besides their outputs, which no graph shows.

It depends on where they run, and on a CPU on whether oneDNN has the kernels of a dtype. What is not here counts as
nothing.
"""

import math
import os
from collections.abc import Iterable

import tensorflow as tf

from tfgc._framework import memory_counts

# TensorFlow's kernels of convolutions take these for the sizes of the caches.
_L2_BYTES, _L3_BYTES = 256 << 10, 30 << 20
_FILTER_GRADIENT, _INPUT_GRADIENT = "Conv2DBackpropFilter", "Conv2DBackpropInput"


def kept_for_gradient(op: tf.Operation) -> int:
    """Bytes that a kernel keeps for its gradient.

    On CPUs the pooling of oneDNN keeps the place of each maximum, in one byte for windows of up to 255.
    """
    if op.type not in ("MaxPool", "MaxPool3D") or tf.config.list_physical_devices("GPU"):
        return 0
    made = op.outputs[0]
    if not memory_counts.runs_by_onednn(made.dtype):
        return 0
    places = made.shape.num_elements() or 0  # Of an unknown number, none count.
    return places * (1 if math.prod(op.get_attr("ksize")) < 256 else 4)


def while_running(operations: Iterable[tf.Operation]) -> dict[tf.Operation, int]:
    """Bytes that kernels allocate for as long as they run, of those operations that do.

    Without oneDNN the gradients of a convolution are products of matrices on a CPU, one of which has a row of patches
    for each pixel ("im2col"), of as many samples as fit in the cache.
    """
    if tf.config.list_physical_devices("GPU"):
        return {}
    found = {op: _patches(op) for op in operations if op.type in (_FILTER_GRADIENT, _INPUT_GRADIENT)}
    return {op: size for op, size in found.items() if size}


def _patches(op: tf.Operation) -> int:
    kernel = op.outputs[0].shape if op.type == _FILTER_GRADIENT else op.inputs[1].shape
    upstream, dtype = op.inputs[2].shape, op.outputs[0].dtype
    if memory_counts.runs_by_onednn(dtype):
        return 0
    if op.get_attr("data_format") != b"NHWC" or not kernel.rank == upstream.rank == 4:
        return 0
    sizes = [size for size in (*kernel, *upstream) if size is not None]
    if len(sizes) != 8:
        return 0
    *window, filters, batch, height, width, _ = sizes
    row, rows = math.prod(window), height * width
    work = rows * filters + row * filters + rows * row
    samples = math.ceil(_L3_BYTES // dtype.size / work)
    threads = tf.config.threading.get_intra_op_parallelism_threads() or os.cpu_count() or 1
    if op.type == _INPUT_GRADIENT and (batch == 1 or work // threads >= _L2_BYTES // dtype.size):
        samples = 1
    return samples * rows * row * dtype.size
