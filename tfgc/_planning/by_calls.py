"""Plans for models without a graph of nodes: by the calls of their layers."""

import reprlib
from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from tfgc import strategies
from tfgc._calls import tracing
from tfgc._calls.call_plans import CallPlans
from tfgc._core.graph import Graph
from tfgc._core.plan import Plan
from tfgc._errors import InfeasibleBudgetError, OptionError, UnsupportedModelError, check_int, did_you_mean
from tfgc._framework import keras_models
from tfgc._planning import budgets
from tfgc._simulate import outlooks, simulator
from tfgc._tracing import example_sizes, functional_graphs, keras_graph, synthetic

# A layer is fat that needs this share of the plain step, and holds so many layers that hold layers.
_FAT = 0.3
_BLOCKS = 2
# What calls must need, as a share of what segments do, to be chosen in their place.
_CLEARLY = 0.9
# Where plans by calls can be predicted.
MODES = ("graph", "xla")
# What a misspelled option may have been meant to be.
_KNOWN = ("batch_size", "budget", "example", "layers", "optimizer")


def applies_to(model: Any, example: Any = None) -> bool:
    """Whether a model is planned by calls alone: it has no graph of nodes, or no batch that all its inputs have."""
    return not keras_models.runs_graph(model) or (example is not None and example_sizes.lengths_differ(model, example))


def refuse(strategy: Any, input_shapes: Any, measure: bool, loss: Any, options: Mapping[str, Any]) -> None:
    """Raise `OptionError` for what applies to graphs of nodes alone, and for what does not exist."""
    if strategy is not None:
        strategies.get(strategy)
    given = {"strategy": strategy, "input_shapes": input_shapes, "measure": measure or None, "loss": loss}
    for name, value in given.items():
        if value is not None:
            raise OptionError(
                f"{name}={reprlib.repr(value)} is for functional models: one that is planned by the calls of its "
                "layers takes a budget, and is planned with the loss that it is compiled with"
            )
    for name in options:
        raise OptionError(
            f"there is no option {name!r} for a model that is planned by the calls of its layers"
            f"{did_you_mean(name, _KNOWN)}"
        )


def chosen(plans: CallPlans, budget: budgets.Budget | None, fixed: int) -> Plan:
    """The plan of least peak, or that of least work within a budget of the whole step, `fixed` bytes of which stay."""
    total = None
    if budget is not None:
        total = budgets.budget_bytes(budget, lambda: plans.plain_bytes(fixed), budgets.resident_bytes(plans.model))
    made = plans.least() if total is None else plans.fitting(total, fixed)
    return budgets.promised(made, plans.estimate(made, fixed).needed_bytes, plans.plain_bytes(fixed), total)


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


def better(
    model: keras.Model,
    graph: Graph,
    by_nodes: Callable[[], Plan],
    budget: budgets.StepBudget | None,
    optimizer: keras.Optimizer | str | None = None,
) -> tuple[Plan, CallPlans | None]:
    """The plan of a functional model by its nodes; where that needs clearly less the one by its calls, and these."""
    try:
        plans = CallPlans(model, _example(model, graph), xla=graph.xla, optimizer=optimizer)
    except UnsupportedModelError:
        return by_nodes(), None
    ours = failed = None
    try:
        ours = by_nodes()
    except InfeasibleBudgetError as error:
        failed = error
    try:
        theirs = plans.least() if budget is None else plans.fitting(budget.total, budget.fixed)
    except InfeasibleBudgetError as error:
        if ours is not None:
            return ours, None
        raise error if failed is None or error.least <= failed.least else failed from None
    if ours is not None:
        fixed = budgets.fixed_bytes(model, optimizer) if budget is None else budget.fixed
        step, other = plans.estimate(theirs, fixed), simulator.estimate(graph, ours, fixed)
        pairs = (step.needed_bytes, other.needed_bytes) if budget is None else (step.overhead, other.overhead)
        if pairs[0] >= _CLEARLY * pairs[1]:
            return ours, None
    return theirs, plans


def check_has_graph(model: keras.Model) -> None:
    """Raise `UnsupportedModelError` for a model without a graph of nodes, and say what it can be planned by."""
    try:
        functional_graphs.functional_of(model)
    except UnsupportedModelError as error:
        advice = "Or plan it by the calls of its layers: give a batch, or its specs, as example=(x, y)"
        raise UnsupportedModelError(f"{error}. {advice}") from None


def plans_for(
    model: keras.Model,
    batch_size: int | None,
    example: Any,
    mode: str = "graph",
    input_shapes: keras_graph.Shapes | None = None,
    optimizer: Any = None,
) -> CallPlans:
    """The plans by calls for a batch, in one of `MODES`; raises `OptionError` for another one."""
    if mode not in MODES:
        raise OptionError(
            f"mode={mode!r}: a model that is planned by the calls of its layers is predicted in 'graph' and 'xla'"
        )
    if batch_size is not None:
        batch_size = check_int("batch_size", batch_size)
    if example is None:
        check_has_graph(model)
        example = _example(model, keras_graph.read(model, batch_size, input_shapes))
    elif input_shapes is not None:
        raise OptionError(example_sizes.EITHER)
    example_sizes.refuse_dataset(example)
    if batch_size is not None:
        example = with_batch(example, batch_size)
    if keras_models.runs_graph(model) and not isinstance(example, tracing.Arguments):
        example = tracing.Arguments((example_sizes.inputs_of(model, example),), {})
    given = tracing.batch_size(example)
    if not given:
        raise OptionError(f"example={reprlib.repr(example)} holds no batch: give x or (x, y) of arrays or tensors")
    if batch_size not in (None, given):
        raise OptionError(f"batch_size={batch_size}, but the example is a batch of {given}: give either one")
    return CallPlans(model, example, xla=mode == "xla", optimizer=optimizer)


def with_batch(example: Any, batch_size: int) -> Any:
    """An example whose specs have this batch where they leave it open."""

    def filled(value: Any) -> Any:
        shape = getattr(value, "shape", None)
        is_open = shape is not None and tf.TensorShape(shape).rank and shape[0] is None
        return tracing.spec(value, batch_size) if is_open else value

    return tf.nest.map_structure(filled, example)


def plans_of_functional(
    model: keras.Model,
    batch_size: int,
    input_shapes: Mapping[str, Any] | None,
    mode: str,
    example: Any = None,
    optimizer: keras.Optimizer | str | None = None,
) -> CallPlans:
    """The plans by calls of a functional model, for inputs of these shapes, or of those of an example batch."""
    if example is not None:
        input_shapes = example_sizes.shapes(model, example)[1]
    inputs, _ = synthetic.specs(model, batch_size, input_shapes)
    return CallPlans(model, tracing.Arguments((inputs,), {}), xla=mode == "xla", optimizer=optimizer)


def _example(model: keras.Model, graph: Graph) -> tracing.Arguments:
    """One call of a functional model, as specs of its inputs."""
    function = functional_graphs.functional_of(model)
    inputs = [tf.TensorSpec(graph.inputs[t.name].shape, t.dtype) for t in function.inputs]
    return tracing.Arguments((function.structured_inputs(inputs),), {})
