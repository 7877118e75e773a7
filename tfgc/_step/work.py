"""What an operation takes: its floating-point operations, or the bytes that it moves if these take longer.

A roofline (Williams, Waterman & Patterson, 2009) with one balance for all machines: it ranks copies of a step, and
predicts no time.
"""

import math

import tensorflow as tf

from tfgc._step import flop_counts
from tfgc._step.step import VIEWS

# Floating-point operations that a processor does while it moves a byte: 5 to 15 on CPUs, 10 to 40 on GPUs (float32).
_BALANCE = 10


def work(op: tf.Operation, rows: int | None) -> int:
    """Work of one operation; an open size counts as `rows`."""
    if op.type in VIEWS or not op.outputs:
        return 0
    read = op.inputs[:2] if op.type == "AddN" else op.inputs  # sums of more are chains
    moved = sum(tensor_bytes(t, rows) for t in (*read, *op.outputs))
    return max(flop_counts.flops(op), _BALANCE * moved)


def tensor_bytes(tensor: tf.Tensor, rows: int | None) -> int:
    """Bytes of a tensor; an open size counts as `rows`, and what has none to count as 0."""
    if tensor.shape.rank is None or tensor.dtype in (tf.resource, tf.variant, tf.string):
        return 0
    return math.prod(size or rows or 1 for size in tensor.shape) * tensor.dtype.size
