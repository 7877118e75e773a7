"""Plan for one call of a model, when its sizes and its mode are there to be seen."""

import dataclasses
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import keras

from tfgc._core.graph import Graph
from tfgc._core.plan import Plan
from tfgc._costs import node_costs
from tfgc._errors import InfeasibleBudgetError, OptionError
from tfgc._planning import annotated, batch_specs, budgets, planner
from tfgc._planning.batch_specs import Shapes
from tfgc._planning.budgets import Budget
from tfgc._planning.node_plans import NodePlans
from tfgc._planning.request import Request
from tfgc._tracing import example_sizes
from tfgc._units import check_budget

Planned = TypeVar("Planned")


@dataclasses.dataclass(frozen=True)
class PlannedStep:
    """A plan for one call, and what it promises there, as `tfgc.PlanStatus` says it.

    `shapes` are those of what the model was given.
    """

    plan: Plan
    mode: str
    batch_size: int | None
    predicted_bytes: int | None
    plain_bytes: int | None
    overhead: float | None
    seconds: float
    unchanged: str | None = None
    shapes: Shapes = ()
    measured_bytes: int | None = None  # what a step was measured to need
    is_asked_for: bool = False  # whether a budget or a strategy says how a step is planned that is planned as a whole

    def holds_for(self, shapes: Shapes, budget: Budget | None) -> bool:
        """Whether inputs of these shapes run by it: none larger, if there is a budget; any, if there is none.

        Where recomputing would have saved next to nothing, it may save something for more than twice as much.
        """
        if budget is None:
            return self.unchanged is None or batch_specs.growth(self.shapes, shapes) <= 2
        return batch_specs.hold(self.shapes, shapes)

    def by(self, plan: Plan, predicted_bytes: int) -> "PlannedStep":
        """The step by another plan."""
        overhead = None if plan.outlook is None else plan.outlook.overhead
        return dataclasses.replace(self, plan=plan, predicted_bytes=predicted_bytes, overhead=overhead)


@node_costs.remembered()
def plan_step(model: keras.Model, inputs: Any, mode: str, request: Request) -> PlannedStep:
    """Plan the training step in which a functional model is called, by a strategy that names its layers.

    `inputs` are tensors, or `tf.TensorSpec`s of them.
    """
    if example_sizes.lengths_differ(model, inputs):
        raise OptionError(
            f"inputs of {model.name!r} differ in their first sizes, so there is no batch to plan its nodes for: "
            "leave strategy and its options out, and its operations are planned"
        )
    start, budget, strategy = time.perf_counter(), request.budget, request.strategy
    assert strategy is not None, "other strategies plan operations"
    graph = annotated.graph_of(model, None, None, inputs, seen=True, xla=mode == "xla", options=request.options)
    batch_size = example_sizes.shapes(model, inputs)[0] or example_sizes.declared_batch(model)
    counted = graph.sizes_known and batch_size is not None
    if budget is not None and not counted:
        _refuse_open_sizes(graph, batch_size, budget)
    if not counted:
        plan = annotated.per_sample(planner.choose(NodePlans(graph), strategy, None, request.options), graph)
        overhead = None if plan.outlook is None else plan.outlook.overhead
        return PlannedStep(plan, mode, batch_size, None, None, overhead, time.perf_counter() - start)
    with budgets.explained(budget):
        nodes = NodePlans(annotated.with_step(graph, model), "graph" if mode == "eager" else mode)
        limit, fixed = budgets.step_budget(model, nodes, budget), budgets.fixed_bytes(model)
        plan, plain = planner.choose(nodes, strategy, limit, request.options), nodes.estimate(None, fixed)
        step = nodes.estimate(plan, fixed)
    plan = budgets.promised(plan, step.needed_bytes, plain.needed_bytes, limit and limit.total)
    seconds = time.perf_counter() - start
    return PlannedStep(plan, mode, batch_size, step.needed_bytes, plain.needed_bytes, step.overhead, seconds)


def _refuse_open_sizes(graph: Graph, batch_size: int | None, budget: Budget) -> None:
    given, sizes = annotated.open_inputs(graph), f"batch_size={batch_size or 'n'}, budget={budget!r}"
    if given is not None:
        raise OptionError(
            f"budget={budget!r}: {given[0]}, also in this call, so its bytes are not known. Plan ahead for the "
            f"largest: tfgc.enable(model, tfgc.plan(model, {sizes}, input_shapes=...)), with {given[1]}"
        )
    if batch_size is not None:
        graph.cut_bytes  # noqa: B018 - raises, and names the layer whose sizes are open
    raise OptionError(
        f"budget={budget!r}: the step is traced without a batch size, so its bytes are not known. Fix it in the data, "
        f"with dataset.batch(n, drop_remainder=True), or plan ahead: tfgc.enable(model, tfgc.plan(model, {sizes}))"
    )


def in_share(
    plan: Callable[[Request], Planned], request: Request, earlier: Iterable[PlannedStep], shapes: Shapes
) -> Planned:
    """Call `plan`; where a share of the plain step is too little, with that of an earlier step on such inputs.

    What is frozen while a model trains makes its plain step smaller, and so a share of it.
    """
    try:
        return plan(request)
    except InfeasibleBudgetError:
        share = None if request.budget is None else check_budget(request.budget)
        before = [step.plain_bytes for step in earlier if step.shapes == shapes and step.plain_bytes]
        if share is None or not before:
            raise
        return plan(dataclasses.replace(request, budget=int(share * max(before))))
