"""Which of two batches is larger: a plan for one holds for another that is larger in nothing."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import tensorflow as tf

Shapes: TypeAlias = Sequence[tuple[Any, ...]]


def specs_in(batch: Any) -> list[tf.TensorSpec]:
    """The `tf.TensorSpec`s in a batch, without other values."""
    return [value for value in tf.nest.flatten(batch) if isinstance(value, tf.TensorSpec)]


def shapes_of(batch: Any) -> Shapes:
    """The shapes of the `tf.TensorSpec`s in a batch."""
    return tuple(tuple(spec.shape) for spec in specs_in(batch))


def are_no_larger(shapes: Shapes, others: Shapes) -> bool:
    """Whether tensors are as many as others, of the same ranks, and none is larger in any dimension."""
    return [*map(len, shapes)] == [*map(len, others)] and all(
        size <= its_size for shape, other in zip(shapes, others) for size, its_size in zip(shape, other)
    )
