"""What a model or its `train_step` is given, as `tf.TensorSpec`s, and which of two batches is larger.

A plan for one holds for another that is larger in nothing.
"""

import dataclasses
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeAlias

import keras
import numpy as np
import tensorflow as tf

from tfgc._core.modes import Mode

Shapes: TypeAlias = Sequence[tuple[Any, ...]]
Sizes: TypeAlias = tuple[tuple[tuple[int | None, ...], str], ...]


@dataclasses.dataclass(frozen=True)
class Signature:
    """What calls of a model have in common that run by one plan, or steps that make the same calls."""

    sizes: Sizes  # for each input its shape, of a call's without the batch, and its dtype
    mode: Mode
    policy: str = ""  # the name of the model's dtype policy
    in_step: bool = False  # whether the model's own `train_step` makes them
    training: Hashable = None  # names the state in which the model trains


def tensors(example: Any) -> list[tf.Tensor]:
    """The tensors in a batch."""
    return [value for value in tf.nest.flatten(example) if tf.is_tensor(value)]


def batch_size(example: Any) -> int | None:
    """The samples in an example batch."""
    shapes = [spec(v if hasattr(v, "dtype") else np.asarray(v)).shape for v in tf.nest.flatten(example) if is_data(v)]
    return next((shape[0] for shape in shapes if shape.rank), None)


def is_open(example: Any) -> bool:
    """Whether the batch of an example is open."""
    return any(is_data(v) and len(v.shape) and v.shape[0] is None for v in tf.nest.flatten(example))


def is_data(value: Any) -> bool:
    """Whether a value is a tensor, an array or a spec of one, and no option of a call."""
    is_sized = hasattr(value, "shape") and not isinstance(value, type)  # NumPy's types have what its scalars have.
    return is_sized and (hasattr(value, "dtype") or hasattr(value, "__array__"))


def spec(value: Any, batch: int | None = None) -> tf.TensorSpec:
    """The `tf.TensorSpec` of a tensor or an array, a batch that is open filled in where it is known."""
    shape = tf.TensorShape(value.shape)
    if shape.rank and shape[0] is None:
        shape = tf.TensorShape([batch, *shape[1:]])
    is_float_array = isinstance(value, np.ndarray) and tf.as_dtype(value.dtype).is_floating  # Keras converts those
    return tf.TensorSpec(shape, keras.config.floatx() if is_float_array else value.dtype)


def sizes_of(inputs: Sequence[Any]) -> Sizes:
    """The sizes of tensors and arrays without the batch, and TensorFlow's names of their dtypes."""
    return tuple([(tuple(x.shape[1:]), tf.as_dtype(x.dtype).name) for x in inputs])


def shapes_in(example: Any, batch_size: Callable[[], int | None]) -> Shapes:
    """The shapes of the tensors and arrays that are no scalars; `batch_size` is asked for where the batch is open."""
    values = [v for v in tf.nest.flatten(example) if tf.is_tensor(v) or isinstance(v, np.ndarray)]
    shapes = [tuple(shape) for shape in (tf.TensorShape(value.shape) for value in values) if shape.rank]
    size = batch_size() if any(shape[0] is None for shape in shapes) else None
    return tuple((size if shape[0] is None else shape[0], *shape[1:]) for shape in shapes)


def specs(example: Any, batch_size: int | None) -> Any:
    """Tensors and arrays as `tf.TensorSpec`s, open batches filled in, and other values; None if a size stays open."""

    def filled(value: Any) -> Any:
        return spec(value, batch_size) if tf.is_tensor(value) or isinstance(value, np.ndarray) else value

    made = tf.nest.map_structure(filled, example)
    return made if all(one.shape.is_fully_defined() for one in specs_in(made)) else None


def specs_in(batch: Any) -> list[tf.TensorSpec]:
    return [value for value in tf.nest.flatten(batch) if isinstance(value, tf.TensorSpec)]
