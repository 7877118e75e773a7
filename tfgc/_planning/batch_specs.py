"""What a model or its `train_step` is given, as `tf.TensorSpec`s, and which of two batches is larger.

A plan for one holds for another that is larger in nothing.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeAlias

import keras
import numpy as np
import tensorflow as tf

from tfgc._calls.tracing import Arguments
from tfgc._core.modes import Mode

Shapes: TypeAlias = Sequence[tuple[Any, ...]]
Sizes: TypeAlias = tuple[tuple[tuple[int | None, ...], str], ...]


@dataclasses.dataclass(frozen=True)
class Signature:
    """What calls of a model have in common that run by one plan.

    Attributes:
        sizes: For each input its shape without the batch, and its dtype.
        mode: How the step runs.
        policy: The name of the model's dtype policy.
        in_step: Whether the model's own `train_step` makes them.
    """

    sizes: Sizes
    mode: Mode
    policy: str
    in_step: bool = False

    def covers(self, other: "Signature") -> bool:
        """Whether a step of the other one needs no more than one of this."""
        (shapes, dtypes), (its_shapes, its_dtypes) = ([*zip(*one.sizes)] or [(), ()] for one in (self, other))
        alike = dataclasses.replace(self, sizes=()) == dataclasses.replace(other, sizes=()) and dtypes == its_dtypes
        return alike and are_no_larger(its_shapes, shapes)


def tensors(example: Any) -> list[tf.Tensor]:
    """The tensors in a batch, or in the `Arguments` of a call."""
    structure = (example.args, example.kwargs) if isinstance(example, Arguments) else example
    return [value for value in tf.nest.flatten(structure) if tf.is_tensor(value)]


def spec(tensor: Any, batch_size: int | None) -> tf.TensorSpec:
    """The `tf.TensorSpec` of a tensor or an array, a batch that is open filled in where it is known."""
    shape = tf.TensorShape(tensor.shape)
    if shape.rank and shape[0] is None:
        shape = tf.TensorShape([batch_size, *shape[1:]])
    is_float_array = isinstance(tensor, np.ndarray) and tensor.dtype.kind == "f"  # Keras converts those
    return tf.TensorSpec(shape, keras.config.floatx() if is_float_array else tensor.dtype)


def specs(example: Any, batch_size: int | None) -> Any:
    """Tensors and arrays as `tf.TensorSpec`s, open batches filled in, and other values; None if a size stays open."""

    def filled(value: Any) -> Any:
        return spec(value, batch_size) if tf.is_tensor(value) or isinstance(value, np.ndarray) else value

    structure = (example.args, example.kwargs) if isinstance(example, Arguments) else example
    made = tf.nest.map_structure(filled, structure)
    if not all(one.shape.is_fully_defined() for one in specs_in(made)):
        return None
    return Arguments(*made) if isinstance(example, Arguments) else made


def specs_in(batch: Any) -> list[tf.TensorSpec]:
    return [value for value in tf.nest.flatten(batch) if isinstance(value, tf.TensorSpec)]


def shapes_of(batch: Any) -> Shapes:
    return tuple(tuple(spec.shape) for spec in specs_in(batch))


def are_no_larger(shapes: Shapes, others: Shapes) -> bool:
    """Whether tensors are as many as others, of the same ranks, and none is larger in any dimension, or open."""
    return [*map(len, shapes)] == [*map(len, others)] and all(
        None not in (size, its_size) and size <= its_size
        for shape, other in zip(shapes, others)
        for size, its_size in zip(shape, other)
    )
