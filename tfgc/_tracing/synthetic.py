"""Batches of seeded noise for any model."""

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfgc._error_texts import one_line
from tfgc._errors import OptionError, UnsupportedModelError, check_int, did_you_mean
from tfgc._framework import keras_models
from tfgc._tracing import functional_graphs

Shapes = Mapping[str, Sequence[int | None]]
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
    function, given = functional_graphs.functional_of(model), input_shapes or {}
    names = [t.name for t in function.inputs]
    if not isinstance(given, Mapping):
        raise OptionError(
            f"input_shapes={given!r}: give the shape of each input by its name, as {{{names[0]!r}: (128,)}}"
        )
    for name in given:
        if name not in names:
            hint = did_you_mean(name, names) or f"; it has {', '.join(map(repr, names))}"
            raise OptionError(f"input_shapes: the model has no input {name!r}{hint}")
    inputs = []
    for tensor in function.inputs:
        shape = _resized(tensor, batch_size, given.get(tensor.name))
        if None in shape[1:]:
            sizes = tuple(128 if size is None else size for size in shape[1:])
            raise OptionError(
                f"input {tensor.name!r} has the shape {tensor.shape}, with unknown sizes besides the batch: give "
                f"input_shapes={{{tensor.name!r}: {sizes}}}, without the batch, or example=batch; in a shell "
                f"--image-size, or --input {tensor.name}={','.join(map(str, sizes))}"
            )
        inputs.append(tf.TensorSpec(shape, tensor.dtype))
    is_single = len(inputs) == 1 and not isinstance(function.input, dict)
    taken = inputs[0] if is_single else keras.tree.pack_sequence_as(function.input, inputs)
    outputs = [tf.TensorSpec((batch_size, *t.shape[1:]), t.dtype) for t in function.outputs]
    if any(None in spec.shape[1:] for spec in outputs):
        call = tf.function(lambda x: model(x, training=True), autograph=False)
        try:
            made = tf.nest.flatten(call.get_concrete_function(taken).structured_outputs)
        except Exception as error:  # the model is the user's code
            shapes = ", ".join(str(spec.shape) for spec in inputs)
            raise UnsupportedModelError(
                f"{model.name!r} cannot be called on a batch of shapes {shapes}: {one_line(error)}. Give other sizes"
            ) from error
        outputs = [tf.TensorSpec(t.shape, t.dtype) for t in made]
    return taken, outputs


def _resized(tensor: keras.KerasTensor, batch_size: int | None, shape: Sequence[int | None] | None) -> list[int | None]:
    """The shape of an input of a model, with the batch size and the shape that were given for it."""
    full = list(tensor.shape)
    if shape is not None:
        shape = _sizes(tensor.name, shape)
        fits = len(shape) == len(full) - 1 and all(a in (None, b) for a, b in zip(full[1:], shape))
        if not fits:
            raise OptionError(
                f"input_shapes: {shape} does not fit input {tensor.name!r} of shape {tuple(full[1:])}: give that "
                "shape with a number in place of each None"
            )
        full[1:] = shape
    if batch_size is not None and full:
        if full[0] not in (None, batch_size):
            raise OptionError(
                f"batch_size={batch_size}: input {tensor.name!r} is declared for batches of {full[0]}; a Sequential "
                "without keras.Input takes that from its first batch. Start the model with keras.Input(shape)"
            )
        full[0] = batch_size
    return full


def _sizes(name: str, shape: Any) -> tuple[int | None, ...]:
    """The sizes that were given for an input, as numbers."""
    with contextlib.suppress(OptionError):
        if isinstance(shape, Iterable) and not isinstance(shape, str):
            return tuple([size if size is None else check_int("size", size) for size in shape])
    raise OptionError(
        f"input_shapes: {shape!r} for input {name!r} is no shape of integers >= 1: give a tuple such as (128,)"
    )


def _words(model: keras.Model) -> tuple[list[str], int]:
    """Words for string inputs, and how many of them make one string."""
    words, length = [], 1
    for layer in keras_models.layers_inside(model):
        if isinstance(layer, (keras.layers.StringLookup, keras.layers.TextVectorization)):
            lines = isinstance(layer, keras.layers.TextVectorization)
            length = _LINE if lines else length
            words += layer.get_vocabulary(include_special_tokens=False)
    return words or ["word"], length
