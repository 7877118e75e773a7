"""Shapes of inputs as they were given, and of what calls make of them.

Keras asks a layer's `compute_output_shape` if it has one. That may leave out what the input sizes settle, and where a
layer is not Keras's own it may be wrong, which training does not notice. The call is then traced on symbolic tensors of
the full sizes: nothing is allocated or run.
"""

import contextlib
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfgc._error_texts import one_line
from tfgc._errors import OptionError, check_int
from tfgc._framework import graph_building, keras_models, tensor_attributes
from tfgc._framework.memory_errors import OUT_OF_MEMORY
from tfgc._pure import inner_functions


def outputs(
    operation: keras.Operation,
    call: Callable[[Callable, Mapping], list],
    given: Mapping[Any, keras.KerasTensor],
    built: list[keras.KerasTensor],
    trusting: bool = True,
) -> list[keras.KerasTensor]:
    """What an operation makes of inputs of these sizes, in the dtype that it computes in.

    `call(function, tensors)` calls a function in place of it, with tensors like `given`; `built` is what it made when
    the model was built. If `trusting`, shapes are believed that are declared by code that is not Keras's.
    """
    known = all(None not in t.shape for t in given.values())
    # Asked for other sizes than those that it was built for, a model of Keras's does not cast what its layers get.
    made = built if known and isinstance(operation, keras.Model) else _asked(operation, call, given, built)
    # A layer may return sizes, `ops.shape(x)[1]`: numbers where they are known.
    made = [t if isinstance(t, keras.KerasTensor) else like(b, b.shape) for t, b in zip(made, built)]
    made = keras_models.as_made(operation, made, given.values())
    if not known or (all(None not in t.shape for t in made) and (trusting or not _declares_own(operation))):
        return made
    function = keras_models.call_with_training(operation, training=True)
    return traced(functools.partial(call, function), given, made)


def traced(
    call: Callable[[dict], list], given: Mapping[Any, keras.KerasTensor], declared: Sequence[keras.KerasTensor]
) -> list[keras.KerasTensor]:
    """The outputs of a call on a mapping like `given`, of known shapes, with every size that its trace settles.

    What cannot be traced stays as `declared`, with a batch of the inputs' size where the first dimension is None.
    """
    try:
        with graph_building.scratch_graph("shapes").as_default(), keras.StatelessScope(), inner_functions.inlined():
            made = call({key: _placeholder(tensor) for key, tensor in given.items()})
    except OUT_OF_MEMORY:
        raise
    except Exception:  # The layer is the user's code; training it plainly may still work.
        batch = next((tensor.shape[0] for tensor in given.values() if tensor.shape), None)
        return [like(t, (t.shape[0] or batch, *t.shape[1:]) if t.shape else ()) for t in declared]
    # Some layers declare a tensor and return None, or a size as a number.
    sized = [getattr(found, "shape", t.shape) for t, found in zip(declared, made)]
    return [like(t, _known(t.shape, tf.TensorShape(shape))) for t, shape in zip(declared, sized)]


def like(tensor: keras.KerasTensor, shape: Sequence[int | None]) -> keras.KerasTensor:
    """A `KerasTensor` as another one, of this shape."""
    return keras.KerasTensor(shape, tensor.dtype, sparse=tensor.sparse)


def masked(tensor: keras.KerasTensor, declared: keras.KerasTensor) -> keras.KerasTensor:
    """A `KerasTensor` as another one, with the mask of a declared one in its sizes."""
    made, mask = like(tensor, tensor.shape), tensor_attributes.mask_of(declared)
    if mask is not None and len(mask.shape) <= len(tensor.shape):
        sizes = zip(mask.shape, declared.shape, tensor.shape)
        shape = tuple(size if own in (None, old) else own for own, old, size in sizes)
        tensor_attributes.set_mask(made, keras.KerasTensor(shape, keras.backend.standardize_dtype(mask.dtype)))
    return made


def resized(
    tensor: keras.KerasTensor, batch_size: int | None, shape: Sequence[int | None] | None, seen: bool = False
) -> keras.KerasTensor:
    """An input of a model, with the batch size and the shape that were given for it."""
    full = list(tensor.shape)
    # Sizes that were `seen` in a call stand above those that the model declares: a Sequential model declares those of
    # the first batch that it was called on, and takes others.
    if seen and full:
        full = [batch_size or full[0], *(full[1:] if shape is None else shape)]
        return like(tensor, full)
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
    return like(tensor, full)


def _sizes(name: str, shape: Any) -> tuple[int | None, ...]:
    """The sizes that were given for an input, as numbers."""
    with contextlib.suppress(OptionError):
        if isinstance(shape, Iterable) and not isinstance(shape, str):
            return tuple([size if size is None else check_int("size", size) for size in shape])
    raise OptionError(
        f"input_shapes: {shape!r} for input {name!r} is no shape of integers >= 1: give a tuple such as (128,)"
    )


def _asked(
    operation: keras.Operation, call: Callable, given: Mapping[Any, keras.KerasTensor], built: list[keras.KerasTensor]
) -> list[Any]:
    """What Keras says that an operation makes. It shows no masks of several inputs to a layer, which may need them."""
    try:
        return call(operation.compute_output_spec, given)
    except OUT_OF_MEMORY:
        raise
    except Exception as error:  # The layer is the user's code.
        if all(tensor_attributes.mask_of(tensor) is None for tensor in given.values()):
            sizes = " and ".join(str(tuple(tensor.shape)) for tensor in given.values())
            raise OptionError(
                f"{operation.name!r} cannot take inputs of shape {sizes}: {one_line(error)}. Give other sizes for the "
                "inputs of the model"
            ) from error
        return built


def _declares_own(operation: keras.Operation) -> bool:
    methods = (getattr(type(operation), name, None) for name in ("compute_output_shape", "compute_output_spec"))
    return any(not getattr(method, "__module__", "keras.").startswith("keras.") for method in methods)


def _placeholder(tensor: keras.KerasTensor) -> Any:
    kind = tf.compat.v1.sparse_placeholder if tensor.sparse else tf.compat.v1.placeholder
    made, mask = kind(tensor.dtype, tensor.shape), tensor_attributes.mask_of(tensor)
    if mask is not None:
        tensor_attributes.set_mask(made, tf.compat.v1.placeholder(mask.dtype, mask.shape))
    return made


def _known(declared: Sequence[int | None], found: tf.TensorShape) -> Sequence[int | None]:
    """Each size that was found, else as declared."""
    if found.rank is None:
        return declared
    if found.rank != len(declared):
        return tuple(found)
    return tuple(a if b is None else b for a, b in zip(declared, found))
