"""Plans that are made ahead of a training step, on a batch that need not be there."""

import dataclasses
import reprlib
from typing import Any

import keras
import tensorflow as tf

from tfgc import strategies
from tfgc._core.modes import check_predictable
from tfgc._core.plan import Plan
from tfgc._errors import OptionError, UnsupportedModelError, check_int
from tfgc._framework import keras_models, keras_names
from tfgc._planning import batch_specs, budgets, stand_in, step_traces
from tfgc._planning.request import Request
from tfgc._planning.step_ahead import StepAhead
from tfgc._step.trace import Trace
from tfgc._tracing import example_sizes, functional_graphs

# Samples of the batch on which a step is traced where none is given; its bytes are then said of one sample.
NOMINAL_BATCH = 64


def applies_to(model: Any, example: Any = None) -> bool:
    """Whether only the step of a model can be planned: it has no graph of layers, or no batch that all inputs have."""
    return not keras_models.runs_graph(model) or (example is not None and example_sizes.lengths_differ(model, example))


def chosen(plans: StepAhead, request: Request) -> Plan:
    """The plan of a step that a request asks for."""
    strategies.check_options(request.chosen, request.options, request.budget)
    if request.options:
        request = dataclasses.replace(request, strategy=request.chosen)
    return plans.asked(request)


def check_has_graph(model: keras.Model) -> None:
    """Raise `UnsupportedModelError` for a model without a graph of layers, and say what it can be planned by."""
    try:
        functional_graphs.functional_of(model)
    except UnsupportedModelError as error:
        advice = "Or plan its step: give a batch, or its specs, as example=(x, y)"
        raise UnsupportedModelError(f"{error}. {advice}") from None


def check_batch(model: Any, batch_size: int | None, example: Any) -> None:
    """Raise `OptionError` where nothing says how large the batch is."""
    if batch_size is None and example is None:
        check_has_graph(model)
        if example_sizes.declared_batch(model) is None:
            raise OptionError("batch_size is needed where bytes are compared: give batch_size=32, for example")


def plans_for(
    model: Any,
    batch_size: int | None,
    example: Any = None,
    mode: str = "graph",
    input_shapes: Any = None,
    loss: Any = None,
    optimizer: Any = None,
) -> StepAhead:
    """The plans of the step of a model on a batch; arguments as for `tfgc.plan`.

    The step is the model's own, or one with the loss and the optimizer that are given or that it is compiled with;
    without either one call and its gradients.
    """
    check_predictable(mode)
    if (shape := getattr(batch_size, "shape", ())) != ():
        raise OptionError(
            f"batch_size is an array of shape {tuple(shape)}: give a batch as example=batch, or the number of its "
            "samples"
        )
    batch_size = None if batch_size is None else check_int("batch_size", batch_size)
    optimizer = None if optimizer is None else keras_names.optimizer(optimizer)
    if loss is not None:
        keras_names.loss(loss)
    if example is None:
        check_has_graph(model)
    elif input_shapes is not None:
        raise OptionError(example_sizes.EITHER)
    example_sizes.refuse_dataset(example)
    if batch_size is not None and example is not None:
        example = with_batch(example, batch_size)
    given = batch_size if example is None else batch_specs.batch_size(example)
    if example is None:
        given = given or example_sizes.declared_batch(model) or NOMINAL_BATCH
    elif not given and not batch_specs.is_open(example):  # which is said where the step is traced
        raise OptionError(f"example={reprlib.repr(example)} holds no batch: give x or (x, y) of arrays or tensors")
    if given and batch_size not in (None, given):
        raise OptionError(f"batch_size={batch_size}, but the example is a batch of {given}: give either one")
    trace = _trace(model, given, example, input_shapes, loss, optimizer)  # which builds the model
    return StepAhead(model, trace, budgets.fixed_bytes(model, optimizer), mode)


def _trace(model: Any, given: int | None, example: Any, input_shapes: Any, loss: Any, optimizer: Any) -> Trace:
    has_own_step = keras_models.has_own_step(model)
    if not keras_models.runs_graph(model) or (has_own_step and example is not None) or not given:
        if input_shapes is not None or loss is not None:
            name, value = ("loss", loss) if input_shapes is None else ("input_shapes", input_shapes)
            raise OptionError(
                f"{name}={reprlib.repr(value)} is for functional models: the step of another one is planned as it is "
                "traced, with the loss that the model is compiled with"
            )
        return step_traces.of_step(model, example)
    if example is not None and not example_sizes.lengths_differ(model, example):
        example_sizes.shapes(model, example)
        example_sizes.check_sizes(model, example)
    if (model.built and not model.weights) or not functional_graphs.functional_of(model).outputs:
        raise step_traces.nothing_to_train(model)
    if loss is None and (not model.compiled or has_own_step):
        if example is not None:
            return step_traces.of_call(model, example_sizes.inputs_of(model, example))
        return step_traces.of_call(model, stand_in.specs(model, given, input_shapes)[0])
    data = stand_in.batch(model, given, input_shapes, example, loss)
    if loss is None and optimizer is None and data is example and not keras_models.has_replicas(model):
        return step_traces.of_step(model, data)
    return step_traces.of_stand_in(model, data, loss, optimizer)


def with_batch(example: Any, batch_size: int) -> Any:
    """An example whose specs have this batch where they leave it open."""

    def filled(value: Any) -> Any:
        shape = getattr(value, "shape", None)
        is_open = shape is not None and tf.TensorShape(shape).rank and shape[0] is None
        return batch_specs.spec(value, batch_size) if is_open else value

    return tf.nest.map_structure(filled, example)
