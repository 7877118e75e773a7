"""What a model or its `train_step` is given, as `tf.TensorSpec`s."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfgc._calls.tracing import Arguments
from tfgc._planning import batch_sizes


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
    """Tensors and arrays as `tf.TensorSpec`s, open batches filled in, and other values as they are.

    Returns:
        The same structure; None if a size stays open.
    """

    def filled(value: Any) -> Any:
        return spec(value, batch_size) if tf.is_tensor(value) or isinstance(value, np.ndarray) else value

    structure = (example.args, example.kwargs) if isinstance(example, Arguments) else example
    made = tf.nest.map_structure(filled, structure)
    if not all(one.shape.is_fully_defined() for one in batch_sizes.specs_in(made)):
        return None
    return Arguments(*made) if isinstance(example, Arguments) else made
