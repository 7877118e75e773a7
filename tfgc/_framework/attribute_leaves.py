"""What the attributes of layers hold, in lists and dictionaries, too."""

from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from tfgc._framework import keras_models


def leaves(value: Any, keys: bool = False) -> Iterator[Any]:
    """What is in a structure of lists, tuples and dictionaries, as they are ordered, with or without the keys.

    Unlike `keras.tree.flatten`, it takes keys that cannot be sorted: Keras holds dictionaries by layers.
    """
    if isinstance(value, dict):
        value = [*value, *value.values()] if keys else value.values()
    elif not isinstance(value, (list, tuple)):
        yield value
        return
    for item in value:
        yield from leaves(item, keys)


def plain_variables(layer: keras.Layer) -> list[tf.Variable]:
    """The variables of TensorFlow's own that a layer holds, which Keras does not count among its variables."""
    return [value for value in leaves(vars(layer)) if isinstance(value, tf.Variable)]


def holds_foreign_tensors(layer: keras.Layer) -> bool:
    """Whether a layer, or one inside of it, has put a tensor of another graph than the one being built aside."""
    here = tf.compat.v1.get_default_graph()
    attributes = [keras_models.own_attributes(inner) for inner in keras_models.layers_inside(layer)]
    return any(tf.is_symbolic_tensor(x) and x.graph is not here for x in leaves(attributes))
