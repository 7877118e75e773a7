"""Checks before anything is recomputed: where it is called, and on what."""

from typing import Any

import tensorflow as tf

from tfgc._errors import UnsupportedModelError


def refuse_tf1_graph(name: str) -> None:
    """Raise where operations go into a TensorFlow 1 graph: `tf.custom_gradient` follows no variables there.

    A `tf.function`, a `tf.data` pipeline, `tf.compat.v1.wrap_function` and Keras's scratch graphs build functions.
    """
    if not tf.executing_eagerly() and not tf.compat.v1.get_default_graph().building_function:
        raise UnsupportedModelError(
            f"{name} was called in a TensorFlow 1 graph (tf.Graph, tf.compat.v1.Session), where nothing can be "
            "recomputed: call it eagerly or inside a tf.function"
        )


def is_empty(*values: Any) -> bool:
    """Whether tensors are known to have no elements, all of them, so that there is nothing to save.

    TensorFlow's optimizer kills the process on some graphs with sizes of zero (it replaces a multiplication by a tile
    and divides by the size, in ReplaceMulWithBroadcastByTile) and does not on others, so such calls run plainly.
    """
    shapes = [value.shape for value in tf.nest.flatten(values) if tf.is_tensor(value) and value.shape.rank != 0]
    return bool(shapes) and all(shape.rank and 0 in shape.as_list() for shape in shapes)
