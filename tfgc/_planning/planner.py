"""From a model to plans for it."""

from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from tfgc import strategies
from tfgc._core.graph import Graph
from tfgc._core.modes import check_predictable
from tfgc._core.plan import Plan
from tfgc._costs import node_costs
from tfgc._errors import OptionError
from tfgc._framework import host_memory, keras_names
from tfgc._framework.model_checks import check_model
from tfgc._planning import ahead, annotated, budgets
from tfgc._planning.budgets import Budget, StepBudget
from tfgc._planning.node_plans import NodePlans, noted
from tfgc._planning.request import Request
from tfgc._tracing.keras_graph import Shapes
from tfgc.strategies import Strategy, _host_memory


@node_costs.remembered()
def plan(
    model: keras.Model,
    batch_size: int | None = None,
    *,
    strategy: Strategy | None = None,
    budget: Budget | None = None,
    mode: str = "graph",
    input_shapes: Shapes | None = None,
    example: Any = None,
    measure: bool = False,
    optimizer: keras.Optimizer | str | None = None,
    loss: Any = None,
    **options: Any,
) -> Plan:
    """Choose what to keep and what to recompute when `model` trains: `tfgc.plan` without `confirm`."""
    check_predictable(mode)
    if optimizer is not None:
        keras_names.optimizer(optimizer)
    if loss is not None:
        keras_names.loss(loss)
    request = Request(strategy, budget, options)
    if ahead.applies_to(model, example):
        ahead.refuse(input_shapes, measure, loss)
        plans = ahead.plans_for(model, batch_size, example, mode)
        return ahead.chosen(plans, request, budgets.fixed_bytes(model, optimizer))
    batch_is_known = batch_size is not None or example is not None
    if not measure and optimizer is None and loss is None:
        whole = ahead.of_fit(model, batch_size, example, input_shapes, mode, request)
        if whole is not None:
            return ahead.chosen(whole, request, budgets.fixed_bytes(model))
    may_be_fat = strategy is None and not options and batch_is_known and mode in ahead.MODES
    if strategy is None and budget is not None:
        strategy = "budget"
    if strategy is not None:
        strategies.check_options(strategy, options, budget)
    graph = annotated.graph_of(
        model, batch_size, input_shapes, example, measure=measure, whole_step=budget is not None, loss=loss,
        optimizer=optimizer, xla=mode == "xla", options=options,
    )  # fmt: skip
    if strategy is None:
        strategy = of_least_peak(graph)
    nodes = NodePlans(graph, mode)
    limit = budgets.step_budget(model, nodes, budget, optimizer)

    if may_be_fat and ahead.has_fat_layer(model, graph):
        plans = ahead.plans_for(model, batch_size, example, mode, input_shapes)
        return ahead.chosen(plans, request, budgets.fixed_bytes(model, optimizer))
    with budgets.explained(budget):
        made = choose(nodes, strategy, limit, options)
    if budget is None and not batch_is_known:
        return annotated.per_sample(made, graph)
    if made.outlook is None:
        return made
    if not graph.whole_step:
        nodes = NodePlans(annotated.with_step(graph, model, loss, optimizer), mode)
    fixed = budgets.fixed_bytes(model, optimizer) if limit is None else limit.fixed
    needed = nodes.estimate(made, fixed).needed_bytes
    return budgets.promised(made, needed, nodes.plain_bytes(fixed), limit and limit.total)


def of_least_peak(graph: Graph) -> str:
    """The strategy of least peak; where sizes are not known, none that recomputes, and a warning."""
    if graph.sizes_known:
        return "optimal"
    annotated.warn_of_open_sizes(graph)
    return "keep_all"


def choose(nodes: NodePlans, strategy: Strategy, budget: StepBudget | None, options: dict[str, Any]) -> Plan:
    """Plan an annotated graph: for the least activations, or for the whole step within a budget."""
    options = with_measured_link(options)
    if budget is None:
        return noted(nodes.graph, strategies.apply(strategy, nodes.graph.counting(whole_step=False), **options))
    return nodes.with_figures(nodes.fitting(budget.total, budget.fixed, strategy, **options))


def with_measured_link(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a strategy with bytes a second where `bandwidth` names a device: its link to the host is measured."""
    device = _host_memory.device_of(options.get("bandwidth"))
    if device is None:
        return dict(options)
    known = {place.name.removeprefix("/device:").upper(): place.name for place in tf.config.list_logical_devices()}
    name = device.upper().removeprefix("/").removeprefix("DEVICE:")
    if name not in known:
        raise OptionError(f"bandwidth={device!r}: TensorFlow has no such device (it has: {', '.join(known)})")
    found = host_memory.bandwidth(known[name])
    if found is None:
        raise OptionError(
            f"bandwidth={device!r}: its memory is the host's, so that nothing is copied: name an accelerator, or give "
            "bytes a second such as '12GB'"
        )
    return {**options, "bandwidth": int(found)}


def pareto(
    model: keras.Model,
    batch_size: int | None = None,
    *,
    input_shapes: Shapes | None = None,
    example: Any = None,
    measure: bool = False,
    loss: Any = None,
    mode: str = "graph",
    **options: Any,
) -> list[Plan]:
    """Return the Pareto front of plans, from the least peak to the plain step, each with less work than the one before.

    Args:
        model, batch_size, input_shapes, example, measure, loss: As for `tfgc.plan`.
        mode: As for `tfgc.plan`; the peaks for `compiled` are those for `graph`.
        **options: Options of the strategy `budget`.

    Returns:
        A list of `Plan` whose `outlook` holds peak and overhead.

    Raises:
        OptionError: If the batch size or another size is not known, or for an option that does not exist.
        UnsupportedModelError: If the model has no graph and there is no example, or if it cannot be traced.

    Example:
        >>> import keras, tfgc
        >>> model = keras.Sequential([keras.Input((8,))] + [keras.layers.Dense(8) for _ in range(8)])
        >>> front = tfgc.pareto(model, batch_size=32)
        >>> front[0].outlook.peak_bytes < front[-1].outlook.peak_bytes, front[-1].outlook.overhead
        (True, 0.0)
    """
    check_model(model)
    check_predictable(mode)
    if ahead.applies_to(model, example):
        ahead.refuse(input_shapes, measure, loss)
        return ahead.plans_for(model, batch_size, example, mode).front()
    if not measure and loss is None and not options:
        whole = ahead.of_fit(model, batch_size, example, input_shapes, mode, Request())
        if whole is not None:
            return whole.front()
    strategies.check_names("budget", options)
    graph = annotated.graph_of(
        model, batch_size, input_shapes, example, measure=measure, whole_step=True, loss=loss, xla=mode == "xla",
        options=options,
    )  # fmt: skip
    plans = NodePlans(graph)
    return [plans.with_figures(plan) for plan in plans.frontier(**with_measured_link(options)).plans]
