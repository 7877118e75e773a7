"""Batches of seeded noise for any model."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfgc._core.graph import Ref
from tfgc._errors import OptionError
from tfgc._framework import keras_models
from tfgc._tracing import functional_graphs
from tfgc._tracing.keras_graph import Shapes, read

_SEED = 0
_LINE = 8  # words in a line of text


def batch(model: keras.Model, batch_size: int, input_shapes: Shapes | None = None) -> tuple[Any, list[tf.Tensor]]:
    """Inputs in the model's structure, and a list of targets, one for each output.

    Whole numbers are 0 or 1; strings are words that the model's lookups know, or lines of eight of them for a
    `TextVectorization`; booleans are True; all else is normally distributed.
    """
    random = np.random.default_rng(_SEED)
    words, length = _words(model)

    def tensor(spec: tf.TensorSpec) -> tf.Tensor:
        shape: Any = tuple(spec.shape)
        if spec.dtype == "string":
            return tf.strings.reduce_join(random.choice(words, (*shape, length)), axis=-1, separator=" ")
        if spec.dtype.is_integer:
            return tf.constant(random.integers(0, 2, shape), spec.dtype)
        return tf.cast(random.standard_normal(shape, dtype="float32"), spec.dtype)

    inputs, outputs = specs(model, batch_size, input_shapes)
    return tf.nest.map_structure(tensor, inputs), [tensor(spec) for spec in outputs]


def specs(model: keras.Model, batch_size: int, input_shapes: Shapes | None = None) -> tuple[Any, list[tf.TensorSpec]]:
    """What `batch` makes, as `tf.TensorSpec`s; raises if a size of an input is open."""
    sides: Any = model.inputs, model.outputs
    if input_shapes or any(None in tensor.shape[1:] for tensor in model.outputs):
        graph = read(model, batch_size, input_shapes)
        sides = [graph.specs[Ref(t.name)] for t in model.inputs], [graph.specs[ref] for ref in graph.outputs]
    for tensor, spec in zip(model.inputs, sides[0]):
        if None in spec.shape[1:]:
            raise OptionError(
                f"input {tensor.name!r} has the shape {tensor.shape}: give its size, by --image-size or "
                f"--input {tensor.name}=SIZES, in Python by input_shapes="
            )
    inputs, outputs = ([tf.TensorSpec((batch_size, *spec.shape[1:]), spec.dtype) for spec in side] for side in sides)
    declared = functional_graphs.functional_of(model).input
    if len(inputs) > 1 or isinstance(declared, dict):
        return keras.tree.pack_sequence_as(declared, inputs), outputs
    return inputs[0], outputs


def _words(model: keras.Model) -> tuple[list[str], int]:
    """Words for string inputs, and how many of them make one string."""
    words, length = [], 1
    for layer in keras_models.layers_inside(model):
        if isinstance(layer, (keras.layers.StringLookup, keras.layers.TextVectorization)):
            lines = isinstance(layer, keras.layers.TextVectorization)
            length = _LINE if lines else length
            words += layer.get_vocabulary(include_special_tokens=False)
    return words or ["word"], length
