"""Batches for models without a graph, which do not say what they take: made from an example that the user gives.

In the parent the example becomes data that a child process can read before TensorFlow is imported. There its samples
are repeated until the batch is as large as asked for.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tfgc._core.tensors import Spec
from tfgc._errors import OptionError

_SEED = 0


def portable(example: Any) -> Any:
    """An example with arrays instead of tensors, and a `Spec`, which stands for noise, for each spec of a framework."""
    import tensorflow as tf

    not_dense = tf.SparseTensor, tf.SparseTensorSpec, tf.RaggedTensor, tf.RaggedTensorSpec

    def plain(value: Any) -> Any:
        if isinstance(value, not_dense) or hasattr(value, "tocsr"):  # the latter of SciPy
            kind = type(value).__name__
            raise OptionError(f"example: a {kind} cannot be measured: give dense arrays or tf.TensorSpecs")
        if hasattr(value, "numpy"):
            return value.numpy()
        if hasattr(value, "shape") and hasattr(value, "dtype") and not isinstance(value, (np.ndarray, np.generic)):
            return Spec(tuple(value.shape), tf.as_dtype(value.dtype).name)
        return value if value is None else np.asarray(value)

    made = tf.nest.map_structure(plain, example)
    if not any(len(value.shape) for value in _leaves(made)):
        raise OptionError(
            f"example={example!r}: give a batch as fit takes it, x or (x, y), of arrays or tf.TensorSpecs"
        )
    return made


def _leaves(example: Any) -> list[Any]:
    """The arrays and specs of a portable example."""
    import tensorflow as tf

    return [leaf for leaf in tf.nest.flatten(example) if leaf is not None]


def samples(example: Any) -> int | None:
    """How many samples a portable example has; None where a spec leaves it open."""
    sizes = [leaf.shape[0] for leaf in _leaves(example) if len(leaf.shape)]
    return next((size for size in sizes if size is not None), None)


def batch(example: Any, batch_size: int) -> Any:
    """The batch of a portable example, as tensors, with so many samples; for specs noise, 0 and 1, or a word."""
    import keras
    import tensorflow as tf

    random = np.random.default_rng(_SEED)
    count = samples(example)

    def tensor(value: Any) -> Any:
        if isinstance(value, Spec):
            if None in value.shape[1:]:
                raise OptionError(f"example: a size of {value.shape} is open; memory depends on it: give it a number")
            per_sample = value.shape and value.shape[0] in (None, count)
            shape: Any = (batch_size, *value.shape[1:]) if per_sample else value.shape
            if value.dtype == "string":
                return tf.fill(shape, "word")
            if tf.as_dtype(value.dtype).is_integer or value.dtype == "bool":
                return tf.cast(random.integers(0, 2, shape), value.dtype)
            return tf.cast(random.standard_normal(shape, dtype="float32"), value.dtype)
        if value is None:
            return None
        if value.shape and value.shape[0] == count:
            value = value[np.arange(batch_size) % len(value)]
        return tf.convert_to_tensor(value, keras.config.floatx() if value.dtype.kind == "f" else None)

    return tf.nest.map_structure(tensor, example)
