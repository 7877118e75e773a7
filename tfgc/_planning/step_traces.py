"""The training step of any Keras model, traced once on a batch that need not be there; nothing of it runs.

The step is the model's own `train_step`, or Keras's where the model is compiled and the batch has targets, else one
call of the model and the gradients of the mean of its outputs. Layers that are not built yet are built by this, as by
their first call. Losses, Keras's state and Python's random streams are afterwards as they were.
"""

import contextlib
import functools
import re
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import keras
import numpy as np
import tensorflow as tf

from tfgc._error_texts import one_line
from tfgc._errors import OptionError, UnsupportedModelError, warn
from tfgc._framework import (
    added_losses,
    graph_building,
    initial_values,
    isolated_traces,
    keras_models,
    keras_names,
    python_random,
    whole_steps,
)  # fmt: skip
from tfgc._framework.diverted_calls import replaced
from tfgc._framework.memory_counts import OUT_OF_MEMORY
from tfgc._planning import batch_specs, function_trace, stand_in
from tfgc._step.trace import Trace

Result = TypeVar("Result")
# In errors of Keras and TensorFlow about sizes.
_SIZES = re.compile(r"incompatible with the layer|must be equal|[Ii]ncompatible shapes|[Ss]hapes? |same (shape|rank)")


def of_step(model: Any, batch: Any) -> Trace:
    """The trace of a model's training step on a batch of these shapes; of one call, with a warning, if it has none.

    Args:
        model: The model.
        batch: `x`, `(x, y)` or `(x, y, sample_weight)` of arrays, tensors or specs.

    Raises:
        UnsupportedModelError: If the model cannot be traced.
    """
    specs = tf.nest.map_structure(_spec, batch)
    return _first_way(model, specs, _ways(model, specs), functools.partial(_traced, model))


def of_call(model: Any, x: Any) -> Trace:
    """The trace of one call of a model, and of the gradients of the mean of its outputs."""
    specs = tf.nest.map_structure(_spec, x)
    return _first_way(model, specs, [(functools.partial(_call, model), specs)], functools.partial(_traced, model))


def of_stand_in(model: Any, batch: Any, loss: Any = None, optimizer: Any = None) -> Trace:
    """The trace of a step on inputs and what stands for targets, which the model does not see.

    Loss and optimizer are by default those that the model is compiled with; without an optimizer nothing is updated.
    """
    optimizer = optimizer or getattr(model, "optimizer", None)
    if optimizer is not None and not model.trainable_variables:
        raise nothing_to_train(model)
    specs = tf.nest.map_structure(_spec, batch)
    step = stand_in.step(model, loss, optimizer)
    made = _first_way(model, specs, [(step, specs)], functools.partial(_traced, model))
    made.kept = step  # whose optimizer's variables the trace holds weakly
    return made


def nothing_to_train(model: Any) -> UnsupportedModelError:
    """The error for a model without trainable weights."""
    return UnsupportedModelError(
        f"{model.name!r} has no trainable weights, so there is nothing to train and nothing to recompute"
    )


def build(model: Any, batch: Any) -> None:
    """Build the layers of a model that are not, as `of_step` does, by a step that is traced and never run."""
    specs = tf.nest.map_structure(_spec, batch)
    _first_way(model, specs, _ways(model, specs), functools.partial(_build, model))


def _ways(model: Any, specs: Any) -> list[tuple[Callable, Any]]:
    """The step of a model, if there is one, and one call, with what they take."""
    x, y, _ = keras.utils.unpack_x_y_sample_weight(specs)
    is_whole = keras_models.has_own_step(model) or (model.compiled and y is not None)
    return [(model.train_step, specs)] * is_whole + [(functools.partial(_call, model), x)]


def _first_way(
    model: Any, specs: Any, ways: Iterable[tuple[Callable, Any]], run: Callable[[Callable, Any], Result]
) -> Result:
    """What comes of the first way of training that can be traced; a warning, if that is another than the step."""
    errors: list[Exception] = []
    for step, given in ways:
        try:
            found = run(step, given)
        except OUT_OF_MEMORY:
            raise
        except Exception as error:  # the model is the user's code
            errors.append(error)
            continue
        if errors:
            _warn_of_one_call(model, errors[0])
        return found
    raise _untraceable(model, specs, errors[0]) from errors[0]


def _build(model: Any, step: Callable, batch: Any) -> None:
    if keras_models.is_built(model):
        return

    def building() -> None:
        graph = graph_building.scratch_graph("build")
        with isolated_traces.updates_by(lambda *args, **kwargs: None), added_losses.losses_put_back(model):
            with graph.as_default(), whole_steps.traced_here(), initial_values.known_at_once():
                step(tf.nest.map_structure(_placed, batch))

    isolated_traces.in_own_thread(building)


def _traced(model: Any, step: Callable, batch: Any) -> Trace:
    _build(model, step, batch)
    shapes = [spec.shape for spec in batch_specs.specs_in(batch)]
    with contextlib.ExitStack() as stack:
        stack.enter_context(isolated_traces.one_at_a_time)  # others would see the losses that layers hold meanwhile
        stack.enter_context(python_random.streams_put_back())
        stack.enter_context(added_losses.losses_put_back(model))
        for name, value in [*vars(model).items()]:
            if isinstance(value, keras.Optimizer) and not value.built:  # which the first step does
                stack.enter_context(replaced(model, name, keras_names.copied(value)))
        return function_trace.traced(tf.function(step, autograph=False), (batch,), {}, shapes)


def _call(model: Any, x: Any) -> Any:
    """One call of the model and its gradients, for loops of the user's own."""
    with tf.GradientTape() as tape:
        made = model(x, training=True)
        targets = [*tf.nest.flatten(made, expand_composites=True), *model.losses]
        targets = [t for t in targets if isinstance(t, tf.Tensor) and t.dtype.is_floating]
        means = [tf.cast(tf.reduce_mean(t), "float32") for t in targets]
        loss = tf.add_n(means) if means else tf.zeros(())
    return loss, tape.gradient(loss, [v.value for v in model.trainable_variables])


def _spec(value: Any) -> Any:
    if not batch_specs.is_data(value):
        return value
    found = batch_specs.spec(value if hasattr(value, "dtype") else np.asarray(value))
    if not found.shape.is_fully_defined():
        raise OptionError(
            f"example: a size of {found.shape} is open; bytes are known only where all sizes are: give each a number"
        )
    return found


def _placed(spec: Any) -> Any:
    return tf.compat.v1.placeholder(spec.dtype, spec.shape) if isinstance(spec, tf.TensorSpec) else spec


def _is_misfit(error: Exception) -> bool:
    """Whether an error of the user's code says that the sizes of a batch do not fit, and not that it has no values."""
    return isinstance(error, ValueError | tf.errors.InvalidArgumentError) and bool(_SIZES.search(one_line(error)))


def _untraceable(model: Any, batch: Any, error: Exception) -> UnsupportedModelError:
    if _is_misfit(error):
        shapes = ", ".join(str(batch_specs.spec(v).shape) for v in tf.nest.flatten(batch) if batch_specs.is_data(v))
        return UnsupportedModelError(
            f"{model.name!r} cannot be called on a batch of shapes {shapes}: {one_line(error)}. Give a batch as fit "
            "takes it, x or (x, y)"
        )
    first = (
        "" if keras_models.is_built(model) else "call the model once on a batch first, so that its layers are built, "
    )
    return UnsupportedModelError(
        f"{model.name!r} cannot be traced symbolically, so it cannot be planned ahead: {one_line(error)}. Use "
        f"TensorFlow operations for what depends on the values of tensors, {first}or name the layers to recompute: "
        "tfgc.enable(model, layers=[...])"
    )


def _warn_of_one_call(model: Any, error: Exception) -> None:
    """Say that one call of a model is planned in place of its step."""
    how = "on a batch of these shapes" if _is_misfit(error) else "symbolically"
    warn(
        f"the train_step of {model.name!r} cannot be traced {how}, so one call of the model is planned in its "
        f"place: {one_line(error)}. What else the step does is no part of the prediction: use TensorFlow operations "
        "in it, or leave room for it in a budget.",
        UserWarning,
    )
