"""What TensorFlow computes once when it optimizes a step, and keeps from one step to the next."""

from typing import Any

import tensorflow as tf

from tfgc._costs.tensor_buffers import Buffers
from tfgc._framework import shared_constants
from tfgc._pure.flop_counts import SHAPE_ONLY

# Bytes of a buffer from which on it counts.
SMALL = 64


def constant(operations: list[tf.Operation], buffers: Buffers) -> set[tf.Operation]:
    """What TensorFlow computes once and keeps, as it depends on constants alone and is not too large."""
    found: set[tf.Operation] = set()
    for op in operations:
        stateful = op.op_def.is_stateful or op.type == "Placeholder"
        small = all(buffers.bytes(t) <= shared_constants.MOST for t in op.outputs)
        if small and not stateful and all(t.op in found for t in op.inputs):
            found.add(op)
    return found


def sizes(runs: list[tf.Operation], constant: set[tf.Operation], buffers: Buffers) -> tuple[int, ...]:
    """Bytes of the constants that operations read, equal ones once."""
    read = {t.ref(): t for op in runs if op.type not in SHAPE_ONLY for t in op.inputs if t.op in constant}
    large = [t for t in read.values() if buffers.bytes(t) >= SMALL]
    known: dict[tf.Operation, Any] = {}
    return tuple({_formula(t, known): buffers.bytes(t) for t in large}.values())


def _formula(tensor: tf.Tensor, known: dict[tf.Operation, Any]) -> Any:
    """What a constant is made of, the same for equal ones. Numbers from one tensor, as gradients of losses, are."""
    op = tensor.op
    if op not in known:
        attributes = sorted((name, value.SerializeToString()) for name, value in op.node_def.attr.items())
        known[op] = hash((op.type, *attributes, *(_formula(t, known) for t in op.inputs)))
    return known[op], tensor.value_index if tensor.shape.rank else None
