"""Tensors that layers put aside in attributes, which are no results of their calls."""

import keras
import tensorflow as tf

from tfgc._framework.layer_settings import books
from tfgc._framework.layer_values import leaves


def holds_tensors(layer: keras.Layer) -> bool:
    """Whether a layer, or one inside of it, holds a tensor of the graph being built."""
    here = tf.compat.v1.get_default_graph()
    held = ([v for k, v in vars(inner).items() if k not in books()] for inner in layer._flatten_layers())
    return any(tf.is_symbolic_tensor(x) and x.graph is here for values in held for x in leaves(values))
