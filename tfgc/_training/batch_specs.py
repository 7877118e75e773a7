"""What a model or its `train_step` is given, as `tf.TensorSpec`s of known sizes."""

from typing import Any

import tensorflow as tf

from tfgc._calls.tracing import Arguments


def tensors(example: Any) -> list[tf.Tensor]:
    """The tensors in a batch, or in the `Arguments` of a call."""
    structure = (example.args, example.kwargs) if isinstance(example, Arguments) else example
    return [value for value in tf.nest.flatten(structure) if tf.is_tensor(value)]


def spec(tensor: Any, batch_size: int | None) -> tf.TensorSpec:
    """The `tf.TensorSpec` of a tensor, an open batch filled in."""
    shape = tf.TensorShape(tensor.shape)
    if shape.rank and shape[0] is None:
        shape = tf.TensorShape([batch_size, *shape[1:]])
    return tf.TensorSpec(shape, tensor.dtype)


def specs(example: Any, batch_size: int | None) -> Any:
    """The tensors as `tf.TensorSpec`s, open batches filled in; None if a size stays open."""
    complete = True

    def filled(value: Any) -> Any:
        nonlocal complete
        if not tf.is_tensor(value):
            return value
        made = spec(value, batch_size)
        complete = complete and made.shape.is_fully_defined()
        return made

    if isinstance(example, Arguments):
        made: Any = Arguments(*tf.nest.map_structure(filled, (example.args, example.kwargs)))
    else:
        made = tf.nest.map_structure(filled, example)
    return made if complete else None
