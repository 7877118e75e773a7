"""Tensors that a layer puts aside for others as it runs."""

import keras
import tensorflow as tf

from tfgc._framework import keras_models
from tfgc._framework.attribute_leaves import leaves


def of_another_graph(layer: keras.Layer) -> bool:
    """Whether a layer, or one inside of it, has a tensor of another graph than the one being built as an attribute."""
    here = tf.compat.v1.get_default_graph()
    attributes = [keras_models.own_attributes(inner) for inner in keras_models.layers_inside(layer)]
    return any(tf.is_symbolic_tensor(x) and x.graph is not here for x in leaves(attributes))
