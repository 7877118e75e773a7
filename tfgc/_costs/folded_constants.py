"""What TensorFlow computes once when it optimizes a step, and keeps from one step to the next."""

from collections.abc import Iterable, Set
from typing import Any

import tensorflow as tf

from tfgc._costs.tensor_buffers import Buffers
from tfgc._framework import shared_constants
from tfgc._pure.flop_counts import SHAPE_ONLY

# Bytes of a buffer from which on it counts.
SMALL = 64


def folded(operations: Iterable[tf.Operation], buffers: Buffers) -> set[tf.Operation]:
    """What TensorFlow computes once and keeps, as it depends on constants alone and is not too large."""
    found: set[tf.Operation] = set()
    for op in operations:
        stateful = op.op_def.is_stateful or op.type == "Placeholder"
        small = all(buffers.bytes(t) <= shared_constants.MOST for t in op.outputs)
        if small and not stateful and all(t.op in found for t in op.inputs):
            found.add(op)
    return found


def sizes(runs: Iterable[tf.Operation], constants: Set[tf.Operation], buffers: Buffers) -> dict[Any, int]:
    """Bytes of the constants that operations read, by what they are made of, so that equal ones count once."""
    read = {t.ref(): t for op in runs if op.type not in SHAPE_ONLY for t in op.inputs if t.op in constants}
    large = [t for t in read.values() if buffers.bytes(t) >= SMALL]
    known: dict[tf.Operation, Any] = {}
    return {_formula(t, known): buffers.bytes(t) for t in large}


def _formula(tensor: tf.Tensor, known: dict[tf.Operation, Any]) -> Any:
    """What a constant is made of, the same for equal ones. Numbers from one tensor, as gradients of losses, are."""
    op = tensor.op
    if op not in known:
        # Those that begin with an underscore say where it runs, or what asked for it.
        given = [(name, value) for name, value in op.node_def.attr.items() if not name.startswith("_")]
        attributes = sorted((name, value.SerializeToString()) for name, value in given)
        known[op] = hash((op.type, *attributes, *(_formula(t, known) for t in op.inputs)))
    return known[op], tensor.value_index if tensor.shape.rank else None
