"""The plan of a compiled model's training step as `fit` runs it in a graph, on a batch that need not be there.

The step is the model's own, where the batch has its targets. Else these have the shapes of the outputs, or are classes,
and a trainer of its own has the compiled loss and metrics: those of the model go by the first targets that they see.
"""

import contextlib
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfgc._calls import tracing
from tfgc._core.plan import Plan
from tfgc._framework import isolated_traces, keras_models
from tfgc._framework.replaced import replaced
from tfgc._measure import shipped
from tfgc._planning import batch_specs, by_calls, step_plans
from tfgc._planning.planner import Request
from tfgc._pure import python_random
from tfgc._step.trace import Trace
from tfgc._training import function_trace
from tfgc._training.function_plans import TracePlans
from tfgc._training.stand_ins import mode_of_fit
from tfgc._training.trainer import Trainer


def applies_to(model: Any, request: Request) -> bool:
    """Whether `fit` runs the steps of a model by plans of their operations."""
    is_alone = getattr(model, "distribute_strategy", None) is tf.distribute.get_strategy()
    follows = step_plans.can_follow(request.strategy, request.options)
    return bool(model.compiled) and mode_of_fit(model) == "graph" and is_alone and follows


def plan(model: Any, batch_size: int | None, input_shapes: Any, example: Any, request: Request) -> Plan | None:
    """The plan of the whole step; None if it cannot be traced on such a batch."""
    try:
        found = _step(model, batch_size, input_shapes, example)
        traced = None if found is None else _traced(model, *found)
    except Exception:  # the step is the user's code; what it lacks is said where layers are planned
        return None
    if traced is None or batch_size not in (None, traced[1][0][0]):
        return None
    return TracePlans(traced[0], request, traced[1], may_correct=False).described()


def _step(model: Any, batch_size: int | None, input_shapes: Any, example: Any) -> tuple[Callable, Any] | None:
    """What trains on a batch, and a batch or specs of one; None where none is known."""
    if example is not None and batch_size is not None:
        example = by_calls.with_batch(example, batch_size)
    has_targets = isinstance(example, tuple | list) and len(example) > 1
    if keras_models.runs_graph(model) and not tracing.has_own_step(model):
        batch_size = batch_size or tracing.batch_size(example)
        if batch_size is None:
            return None
        batch = shipped.batch(model, batch_size, input_shapes, example, None)
        return model.train_step if batch is example else _compiled_step(model), batch
    is_whole = has_targets or (example is not None and tracing.has_own_step(model))
    return (model.train_step, example) if is_whole else None


def _compiled_step(model: Any) -> Callable:
    """One with the compiled loss, metrics and optimizer."""
    metrics, weighted = keras_models.compiled_metrics(model) or (None, None)
    trainer = Trainer(model, model)
    trainer.compile(loss=model.loss, metrics=metrics, weighted_metrics=weighted)

    def step(data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            outputs = model(x, training=True)
            loss: Any = trainer.compute_loss(x, y, outputs)
            scaled = model.optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, [v.value for v in model.trainable_variables])
        model.optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return {**trainer.compute_metrics(x, y, outputs), "loss": loss}

    return step


def _traced(model: Any, step: Callable, batch: Any) -> tuple[Trace, list[tf.TensorShape]] | None:
    """The trace of a step, and the shapes of what it takes; None where sizes are open, or nothing trains."""
    specs = tf.nest.map_structure(lambda value: tracing.spec(value) if hasattr(value, "shape") else value, batch)
    shapes = [one.shape for one in batch_specs.specs_in(specs)]
    if any(not shape.is_fully_defined() or 0 in shape for shape in shapes):
        return None
    if not tracing.is_built(model):
        tracing.trace(model, specs)
    if not model.trainable_weights:
        return None
    with contextlib.ExitStack() as stack:
        stack.enter_context(python_random.streams_put_back())
        stack.enter_context(isolated_traces.losses_put_back(model))
        for name, value in [*vars(model).items()]:
            if isinstance(value, keras.Optimizer) and not value.built:  # which the first step does
                stack.enter_context(replaced(model, name, type(value).from_config(value.get_config())))
        return function_trace.traced(tf.function(step, autograph=False), (specs,), {}, shapes), shapes
