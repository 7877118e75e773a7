"""What XLA stores of dropouts: numbers that were drawn, or masks made of them.

The kernel that draws computes all of a dropout, and its mask again from what was drawn; not behind a softmax.
"""

from collections.abc import Collection, Mapping

import tensorflow as tf

from tfgc._pure import random_draws
from tfgc._step.flop_counts import SHAPE_ONLY, VIEWS

_COMPARISONS = frozenset(["Greater", "GreaterEqual", "Less", "LessEqual"])
_SCALED = frozenset(["Cast", "Mul", "SelectV2"]) | VIEWS


def is_of_softmax(mask: tf.Tensor, beyond: Collection[tf.Operation]) -> bool:
    """Whether a tensor is the mask of a dropout behind a softmax, which XLA stores in place of the random numbers.

    Operations `beyond` are those of gradients, and those that cost a step nothing.
    """
    if mask.dtype != tf.bool:
        return False
    selects = [op for op in mask.consumers() if op.type == "SelectV2" and op.inputs[0] is mask]
    scaled = [t for op in selects if op not in beyond for t in op.inputs[1:] if t.op.type == "Mul"]
    return any(_is_softmax(t.op) for t in scaled)


def _is_softmax(op: tf.Operation, steps: int = 4) -> bool:
    """Whether an operation is a softmax, or scales or masks one in as few steps as a layer takes."""
    if op.type == "Softmax":
        return True
    return bool(steps) and op.type in _SCALED and any(_is_softmax(t.op, steps - 1) for t in op.inputs)


def of_draws(found: Mapping[int, tf.Tensor], count: int) -> tuple[tuple[int, int], ...]:
    """The elements of tensors, by number, if as many are random numbers that are read for comparisons alone."""
    are = len(found) == count and all(random_draws.draws([t.op]) and _is_compared(t) for t in found.values())
    return tuple((i, t.shape.num_elements() or 0) for i, t in found.items()) if are else ()


def _is_compared(tensor: tf.Tensor) -> bool:
    """Whether a tensor, shifted and scaled at most, is read for comparisons alone."""
    readers = [op for op in tensor.consumers() if op.type not in SHAPE_ONLY]
    return bool(readers) and all(
        op.type in _COMPARISONS or (op.type in ("AddV2", "Cast", "Mul") and _is_compared(op.outputs[0]))
        for op in readers
    )
