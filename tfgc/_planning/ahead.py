"""Plans that are made ahead of a training step, on a batch that need not be there."""

import contextlib
import dataclasses
import reprlib
from typing import Any

import keras
import tensorflow as tf

from tfgc import strategies
from tfgc._core.graph import Graph
from tfgc._core.plan import Plan
from tfgc._errors import OptionError, UnsupportedModelError, check_int
from tfgc._framework import keras_models, keras_names
from tfgc._planning import batch_specs, step_plans, step_traces
from tfgc._planning.request import Request
from tfgc._planning.step_ahead import StepAhead
from tfgc._simulate import outlooks
from tfgc._tracing import example_sizes, functional_graphs, keras_graph, synthetic

# A layer is fat that needs this share of the plain step, and holds so many layers that hold layers.
_FAT = 0.3
_BLOCKS = 2
# Where a step is simulated as it is traced.
MODES = ("graph", "xla")


def applies_to(model: Any, example: Any = None) -> bool:
    """Whether only the step of a model can be planned: it has no graph of layers, or no batch that all inputs have."""
    return not keras_models.runs_graph(model) or (example is not None and example_sizes.lengths_differ(model, example))


def refuse(input_shapes: Any, measure: bool, loss: Any) -> None:
    """Raise `OptionError` for what applies to graphs of layers alone."""
    for name, value in {"input_shapes": input_shapes, "measure": measure or None, "loss": loss}.items():
        if value is not None:
            raise OptionError(
                f"{name}={reprlib.repr(value)} is for functional models: the step of another one is planned as it is "
                "traced, with the loss that the model is compiled with"
            )


def chosen(plans: StepAhead, request: Request, fixed: int) -> Plan:
    """The plan of a step that a request asks for; `fixed` bytes of the step are variables."""
    if not step_plans.can_follow(request.strategy, request.options):
        raise names_layers(plans.model, request)
    strategy = request.strategy or ("optimal" if request.budget is None else "budget")
    strategies.check_options(strategy, request.options, request.budget)
    if request.options:
        request = dataclasses.replace(request, strategy=strategy)
    return plans.asked(request, fixed)


def names_layers(model: Any, request: Request) -> OptionError:
    """Says that a strategy, or one of its options, plans the layers of functional models."""
    given = {"strategy": request.strategy, **request.options}
    asked = ", ".join(f"{name}={reprlib.repr(value)}" for name, value in given.items() if value is not None)
    return OptionError(
        f"{asked}: this plans the layers of a functional model, by their names or with host memory; the step of "
        f"{model.name!r} is planned by its operations: name another strategy"
    )


def of_fit(
    model: Any, batch_size: int | None, example: Any, input_shapes: Any, mode: str, request: Request
) -> StepAhead | None:
    """The plans of the step that `fit` runs as a whole, of a compiled functional model; None if it runs otherwise."""
    is_whole = mode == "graph" and model.compiled and not (model.run_eagerly or model.jit_compile)
    is_alone = getattr(model, "distribute_strategy", None) is tf.distribute.get_strategy()
    if not (is_whole and is_alone and step_plans.can_follow(request.strategy, request.options)):
        return None
    if example is None and (batch_size is None or keras_models.has_own_step(model)):
        return None
    if not (batch_size or batch_specs.batch_size(example)) or not model.trainable_weights:
        return None
    with contextlib.suppress(OptionError, UnsupportedModelError):  # what is wrong is said where layers are planned
        return plans_for(model, batch_size, example, mode, input_shapes)
    return None


def has_fat_layer(model: keras.Model, graph: Graph) -> bool:
    """Whether one layer with blocks inside needs so much that segments, which take it whole, cannot save much."""
    if not graph.sizes_known or graph.batch_size is None:
        return False
    floor, node = graph.once(outlooks.floor)
    if floor < _FAT * graph.once(outlooks.plain_peak):
        return False
    layer = keras_graph.Program(model).call_of(node)[0]
    if not isinstance(layer, keras.Layer):
        return False
    inside = keras_models.layers_inside(layer)[1:]
    return sum(bool(keras_models.held_layers(inner)) for inner in inside) >= _BLOCKS


def check_has_graph(model: keras.Model) -> None:
    """Raise `UnsupportedModelError` for a model without a graph of layers, and say what it can be planned by."""
    try:
        functional_graphs.functional_of(model)
    except UnsupportedModelError as error:
        advice = "Or plan its step: give a batch, or its specs, as example=(x, y)"
        raise UnsupportedModelError(f"{error}. {advice}") from None


def plans_for(
    model: Any, batch_size: int | None, example: Any, mode: str = "graph", input_shapes: Any = None
) -> StepAhead:
    """The plans of the step of a model on a batch, in one of `MODES`."""
    if mode not in MODES:
        raise OptionError(f"mode={mode!r}: the step of {model.name!r} is predicted in 'graph' and 'xla'")
    if batch_size is not None:
        batch_size = check_int("batch_size", batch_size)
    if example is None:
        check_has_graph(model)
    elif input_shapes is not None:
        raise OptionError(example_sizes.EITHER)
    example_sizes.refuse_dataset(example)
    if batch_size is not None and example is not None:
        example = with_batch(example, batch_size)
    given = batch_size if example is None else batch_specs.batch_size(example)
    if not given and example is None:
        raise OptionError("give a batch_size: the bytes of a step are those of its batch")
    if not given and not batch_specs.is_open(example):  # which is said where the step is traced
        raise OptionError(f"example={reprlib.repr(example)} holds no batch: give x or (x, y) of arrays or tensors")
    if given and batch_size not in (None, given):
        raise OptionError(f"batch_size={batch_size}, but the example is a batch of {given}: give either one")
    has_own_step = keras_models.has_own_step(model)
    if not keras_models.runs_graph(model) or (has_own_step and example is not None) or not given:
        return StepAhead(model, step_traces.of_step(model, example))
    if not model.compiled or has_own_step:
        x = specs(model, given, input_shapes)[0] if example is None else example_sizes.inputs_of(model, example)
        return StepAhead(model, step_traces.of_call(model, x))
    data = batch(model, given, input_shapes, example, None)
    return StepAhead(model, (step_traces.of_step if data is example else step_traces.of_stand_in)(model, data))


def with_batch(example: Any, batch_size: int) -> Any:
    """An example whose specs have this batch where they leave it open."""

    def filled(value: Any) -> Any:
        shape = getattr(value, "shape", None)
        is_open = shape is not None and tf.TensorShape(shape).rank and shape[0] is None
        return batch_specs.spec(value, batch_size) if is_open else value

    return tf.nest.map_structure(filled, example)


def specs(model: Any, batch_size: int, input_shapes: Any) -> tuple[Any, list[tf.TensorSpec]]:
    """Inputs of a functional model as specs, and its outputs; numbers in place of specs of strings."""
    x, outputs = synthetic.specs(model, batch_size, input_shapes)
    if any(spec.dtype == "string" for spec in tf.nest.flatten(x)):
        x, _ = synthetic.batch(model, batch_size, input_shapes)
    return x, outputs


def batch(model: Any, batch_size: int, input_shapes: Any, example: Any, loss: Any) -> Any:
    """The batch `(x, y)` that the step runs on, the example or specs; arguments as for `tfgc.plan`."""
    if applies_to(model) or (example is not None and _has_targets(model, example)):
        return example
    if example is not None:
        input_shapes = example_sizes.shapes(model, example)[1]
    x, outputs = specs(model, batch_size, input_shapes)
    targets = [_target(one, spec) for one, spec in zip(_losses(model, loss, len(outputs)), outputs, strict=True)]
    return x, keras_graph.Program(model, batch_size, input_shapes).function.structured_outputs(targets)


def _has_targets(model: Any, example: Any) -> bool:
    if not isinstance(example, tuple | list) or len(example) < 2:
        return False
    return len(functional_graphs.functional_of(model).inputs) == 1 or isinstance(example[0], tuple | list | dict)


def _losses(model: Any, loss: Any, outputs: int) -> list[Any]:
    """The loss of each output; None for one without."""
    if loss is None and model.compiled:
        return [next(iter(of_one), None) for of_one in keras_models.compiled_losses(model)]
    return ["mse" if loss is None else loss] * outputs


def _target(loss: Any, output: tf.TensorSpec) -> tf.TensorSpec:
    """A target that a loss takes: of the output's shape, or a class instead of its last dimension."""
    if loss is None:
        return output
    function = tf.function(keras_names.loss(loss), autograph=False)
    for target in (output, tf.TensorSpec(output.shape[:-1], "int32")):
        try:
            function.get_concrete_function(target, output)
        except (ValueError, TypeError, tf.errors.InvalidArgumentError):
            continue
        return target
    return output
