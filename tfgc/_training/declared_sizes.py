"""A step on a batch at hand, traced for the sizes that the data declares and not for those of the batch.

Keras weights the losses of outputs that it reports by the batch size where a trace has one. Where only the batch at
hand tells the size that a budget needs, it stays.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfgc._framework import fit_loop


def opened(step: Callable[[Any], Any], declared: Callable[[], Any]) -> Callable[[Any], Any]:
    """The step for a batch of any of the sizes that are `declared` when it is traced; None: those of the batch."""

    def run(data: Any) -> Any:
        specs = declared()
        if not (specs is None or tf.executing_eagerly() or fit_loop.batch_size() is None):
            data = tf.nest.map_structure(_of_declared_size, data, specs)
        return step(data)

    return run


def _of_declared_size(tensor: Any, spec: Any) -> Any:
    """The tensor as one that may have any size that a dataset leaves open."""
    if not isinstance(spec, tf.TensorSpec) or spec.shape.is_fully_defined():
        return tensor
    return tf.compat.v1.placeholder_with_default(tensor, spec.shape)
