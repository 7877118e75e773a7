"""Trace a training step of any Keras model symbolically, and note which calls made which operations.

The step is the model's own `train_step`, or Keras's where the model is compiled and the batch has targets, else one
call of the model and its gradients. Nothing is run and no batch is allocated. Layers not built yet are built by this,
as by their first call. Losses, Keras's state and Python's random streams are afterwards as they were.
"""

import dataclasses
import functools
import re
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfgc._calls import recording
from tfgc._error_texts import one_line
from tfgc._errors import OptionError, UnsupportedModelError, warn
from tfgc._framework import initial_values, isolated_traces, keras_models
from tfgc._framework.memory_errors import OUT_OF_MEMORY
from tfgc._pure import python_random
from tfgc._tracing import functional_graphs

# In errors of Keras and TensorFlow about sizes.
_SIZES = re.compile(r"incompatible with the layer|must be equal|[Ii]ncompatible shapes|[Ss]hapes? |same (shape|rank)")


@dataclasses.dataclass(frozen=True)
class Arguments:
    """The arguments of a call, in place of a batch."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def trace(model: keras.Model, example: Any, *, xla: bool = False) -> recording.Trace:
    """Trace a training step on a batch of these shapes.

    The example is `x`, `(x, y)` or `(x, y, sample_weight)`, as arrays, tensors, `tf.TensorSpec`s or
    `keras.KerasTensor`s; or `Arguments`, for one call. Under XLA what is compiled apart otherwise is part of the step.
    If the step cannot be traced, one call is traced instead, with a warning.
    """
    ways: list[Callable[[], tuple[Any, list]]] = []
    if isinstance(example, Arguments):
        args, kwargs = tf.nest.map_structure(_spec, (example.args, example.kwargs))
        ways.append(functools.partial(_call, model, args, kwargs))
    else:
        specs = tf.nest.map_structure(_spec, example)
        x, y, _ = keras.utils.unpack_x_y_sample_weight(specs)
        if has_own_step(model) or (model.compiled and y is not None):
            ways.append(functools.partial(_step, model, specs))
        ways.append(functools.partial(_call, model, (x,), {}))
    errors: list[Exception] = []
    for way in ways:
        traced = _attempt(model, way, xla)
        if isinstance(traced, Exception):
            errors.append(traced)
            continue
        if errors:
            _warn_of_one_call(model, errors[0])
        return traced
    if _is_misfit(errors[0]):
        shapes = ", ".join(map(str, _shapes(example)))
        raise UnsupportedModelError(
            f"{model.name!r} cannot be called on a batch of shapes {shapes}: {one_line(errors[0])}. Give a batch as "
            "fit takes it, x or (x, y)"
        ) from errors[0]
    call_first = "" if is_built(model) else "call the model once on a batch first, so that its layers are built, "
    raise UnsupportedModelError(
        f"{model.name!r} cannot be traced symbolically, so it cannot be planned by its calls: {one_line(errors[0])}. "
        f"Use TensorFlow operations for what depends on the values of tensors, {call_first}or name the layers to "
        "recompute: tfgc.enable(model, layers=[...])"
    ) from errors[0]


def _is_misfit(error: Exception) -> bool:
    """Whether an error of the user's code says that the sizes of a batch do not fit, and not that it has no values."""
    return isinstance(error, ValueError | tf.errors.InvalidArgumentError) and bool(_SIZES.search(one_line(error)))


def _warn_of_one_call(model: keras.Model, error: Exception) -> None:
    """Say that one call of a model is planned in place of its step."""
    how = "on a batch of these shapes" if _is_misfit(error) else "symbolically"
    warn(
        f"the train_step of {model.name!r} cannot be traced {how}, so one call of the model is planned in its "
        f"place: {one_line(error)}. What else the step does is no part of the prediction: use TensorFlow operations "
        "in it, or leave room for it in a budget.",
        UserWarning,
    )


def has_own_step(model: keras.Model) -> bool:
    """Whether the class of a model defines how it trains."""
    return type(model).train_step is not keras.Model.train_step


def batch_size(example: Any) -> int | None:
    """The samples in an example batch."""
    return next((shape[0] for shape in _shapes(example) if shape.rank), None)


def _shapes(example: Any) -> list[tf.TensorShape]:
    if isinstance(example, Arguments):
        example = (example.args, example.kwargs)
    return [_spec(value).shape for value in tf.nest.flatten(example) if _is_data(value)]


def _is_data(value: Any) -> bool:
    """Whether a value is a tensor, an array or a spec of one, and no option of a call."""
    is_sized = hasattr(value, "shape") and not isinstance(value, type)  # NumPy's types have what its scalars have.
    return is_sized and (hasattr(value, "dtype") or hasattr(value, "__array__"))


def spec(value: Any, batch: int | None = None) -> tf.TensorSpec:
    """The `tf.TensorSpec` of a tensor or an array, a batch that is open filled in where it is known."""
    shape = tf.TensorShape(value.shape)
    if shape.rank and shape[0] is None:
        shape = tf.TensorShape([batch, *shape[1:]])
    is_float_array = isinstance(value, np.ndarray) and tf.as_dtype(value.dtype).is_floating  # Keras converts those
    return tf.TensorSpec(shape, keras.config.floatx() if is_float_array else value.dtype)


def _spec(value: Any) -> Any:
    if not _is_data(value):
        return value
    found = spec(value if hasattr(value, "dtype") else np.asarray(value))
    if not found.shape.is_fully_defined():
        raise OptionError(
            f"example: a size of {found.shape} is open; bytes are known only where all sizes are: give each a number"
        )
    return found


def _placed(specs: Any) -> Any:
    placeholder = tf.compat.v1.placeholder
    return tf.nest.map_structure(lambda spec: placeholder(spec.dtype, spec.shape) if _is_data(spec) else spec, specs)


def _step(model: keras.Model, specs: Any) -> tuple[Any, list]:
    """The model's own training step."""
    batch = _placed(specs)
    return model.train_step(batch), [value for value in tf.nest.flatten(batch) if _is_data(value)]


def _call(model: keras.Model, args: Any, kwargs: Any) -> tuple[Any, list]:
    """One call of the model and its gradients, for loops of the user's own."""
    args, kwargs = _placed((args, kwargs))
    with tf.GradientTape() as tape:
        made = model(*args, **{**kwargs, "training": True})
    targets = [*tf.nest.flatten(made, expand_composites=True), *model.losses]
    targets = [t for t in targets if isinstance(t, tf.Tensor) and t.dtype.is_floating]
    upstream = [tf.compat.v1.placeholder(t.dtype, t.shape) for t in targets]
    tape.gradient(targets, [v.value for v in model.trainable_variables], output_gradients=upstream)
    return made, [value for value in tf.nest.flatten((args, kwargs)) if _is_data(value)]


def _attempt(model: keras.Model, way: Callable[[], tuple[Any, list]], xla: bool) -> recording.Trace | Exception:
    """Trace one way of training, or return why it cannot be traced."""
    try:
        return isolated_traces.in_own_thread(functools.partial(_traced, model, way, xla))
    except OUT_OF_MEMORY:
        raise
    except Exception as error:  # the model is the user's code
        return error


def is_built(model: keras.Model) -> bool:
    """Whether all layers of a model have their variables."""
    return all(layer.built for layer in keras_models.layers_inside(model))


def _building(step: Callable[[], tuple[Any, list]]) -> tuple[Any, list]:
    with initial_values.known_at_once():
        return step()


def _traced(model: keras.Model, step: Callable[[], tuple[Any, list]], xla: bool) -> recording.Trace:
    with isolated_traces.one_at_a_time, functional_graphs.original_methods(model):
        if not is_built(model):
            # Builds; rewound draws would give later layers the same weights.
            with isolated_traces.losses_put_back(model):
                recording.record(model, functools.partial(_building, step), xla=xla)
        with python_random.streams_put_back(), isolated_traces.losses_put_back(model):
            return recording.record(model, step, xla=xla)
