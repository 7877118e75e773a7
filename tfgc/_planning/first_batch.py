"""Plan for one call of a model, when its sizes and its mode are there to be seen."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import keras

from tfgc._calls.call_plans import CallPlans
from tfgc._calls.own_step_plans import OwnStep
from tfgc._calls.tracing import Arguments
from tfgc._core.graph import Graph
from tfgc._core.plan import Plan
from tfgc._costs import node_costs
from tfgc._errors import InfeasibleBudgetError, OptionError
from tfgc._planning import annotated, batch_specs, budgets, by_calls, counted_step, planner
from tfgc._planning.batch_specs import Shapes
from tfgc._planning.budgets import Budget
from tfgc._planning.node_plans import NodePlans
from tfgc._planning.planner import Request
from tfgc._simulate.simulator import Prediction
from tfgc._tracing import example_sizes
from tfgc._units import check_budget, format_bytes

# The least part of the plain step's peak for which a plan that nobody asked for by name is worth its replays.
_LEAST_GAIN = 0.05
Planned = TypeVar("Planned")


@dataclasses.dataclass(frozen=True)
class PlannedStep:
    """A plan for one call, and what it promises there, as `tfgc.PlanStatus` says it.

    Where the figures count the whole of the model's own `train_step`, `own_step` is the batch that this was given, as
    `tf.TensorSpec`s; else None. `shapes` are those of what the model was given.
    """

    plan: Plan
    mode: str
    batch_size: int | None
    predicted_bytes: int | None
    plain_bytes: int | None
    overhead: float | None
    seconds: float
    unchanged: str | None = None
    own_step: Any = None
    shapes: Shapes = ()
    measured_bytes: int | None = None  # what a step was measured to need
    is_asked_for: bool = False  # whether a budget or a strategy says how a step is planned that is planned as a whole

    def holds_for(self, shapes: Shapes, budget: Budget | None, own_step: Any = None) -> bool:
        """Whether inputs of these shapes run by it: none larger, if there is a budget; any, if there is none.

        Where recomputing would have saved next to nothing, it may save something for more than twice as much. Of the
        batch of the model's own `train_step` no tensor may be larger under a budget.
        """
        if budget is not None and self.own_step is not None and own_step is not None:
            return batch_specs.are_no_larger(*map(batch_specs.shapes_of, (own_step, self.own_step)))
        if budget is None:
            return self.unchanged is None or batch_specs.growth(self.shapes, shapes) <= 2
        return batch_specs.hold(self.shapes, shapes)

    def by(self, plan: Plan, predicted_bytes: int) -> "PlannedStep":
        """The step by another plan."""
        overhead = None if plan.outlook is None else plan.outlook.overhead
        return dataclasses.replace(self, plan=plan, predicted_bytes=predicted_bytes, overhead=overhead)


@node_costs.remembered()
def plan_step(
    model: keras.Model, inputs: Any, mode: str, request: Request, own_step: OwnStep | None = None
) -> PlannedStep:
    """Plan the training step in which a functional model is called, by its own `train_step` if one is given.

    `inputs` are tensors, or `tf.TensorSpec`s of them.
    """
    if example_sizes.lengths_differ(model, inputs):
        if request.strategy is not None or request.options:
            raise OptionError(
                f"inputs of {model.name!r} differ in their first sizes, so there is no batch to plan its nodes for: "
                "leave strategy and its options out, and it is planned by the calls of its layers"
            )
        return plan_step_by_calls(model, Arguments((inputs,), {}), mode, request)
    start = time.perf_counter() - (0.0 if own_step is None else own_step.seconds)
    budget = request.budget
    graph = annotated.graph_of(model, None, None, inputs, seen=True, xla=mode == "xla", options=request.options)
    batch_size = example_sizes.shapes(model, inputs)[0] or example_sizes.declared_batch(model)
    counted = graph.sizes_known and batch_size is not None
    if budget is not None and not counted:
        _refuse_open_sizes(graph, batch_size, budget)
    if not counted:
        strategy = request.strategy or planner.of_least_peak(graph)
        plan = annotated.per_sample(planner.choose(NodePlans(graph), strategy, None, request.options), graph)
        overhead = None if plan.outlook is None else plan.outlook.overhead
        return PlannedStep(plan, mode, batch_size, None, None, overhead, time.perf_counter() - start)
    with budgets.explained(budget):
        counted_mode = "graph" if mode == "eager" else mode
        plan, step, plain, counts_own_step = counted_step.choose(model, graph, counted_mode, request, own_step)
    is_asked_for = request.strategy is not None or budget is not None
    unchanged = None if is_asked_for else _little_saved(plan, step, plain, by_calls=plan.calls or counts_own_step)
    if unchanged is not None:
        plan, step = Plan.from_cuts(graph, [], strategy="keep_all"), plain
    return PlannedStep(
        plan, mode, batch_size, step.needed_bytes, plain.needed_bytes, step.overhead, time.perf_counter() - start,
        unchanged, own_step.batch if counts_own_step and own_step is not None else None,
    )  # fmt: skip


def plan_step_by_calls(model: keras.Model, example: Any, mode: str, request: Request) -> PlannedStep:
    """Plan the training step of any model by the calls of its layers; `OptionError` if the request names a strategy.

    `example` has `tf.TensorSpec`s of fixed sizes: a batch, as `train_step` takes it, or the `Arguments` of a call.
    """
    by_calls.refuse(request.strategy, None, False, None, request.options)
    start, budget = time.perf_counter(), request.budget
    plans = CallPlans(model, example, request.layers, xla=mode == "xla")
    fixed = budgets.fixed_bytes(model)
    plain = plans.estimate(None, fixed)
    with budgets.explained(budget):
        plan = by_calls.chosen(plans, budget, fixed)
    step = plans.estimate(plan, fixed)
    unchanged = _little_saved(plan, step, plain, by_calls=True) if budget is None else None
    return PlannedStep(
        plan, mode, plan.batch_size, step.needed_bytes, plain.needed_bytes, step.overhead, time.perf_counter() - start,
        unchanged,
    )  # fmt: skip


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


def _little_saved(plan: Plan, step: Prediction, plain: Prediction, *, by_calls: bool) -> str | None:
    """Why the best plan does not need much less than the plain step, and what would; None if it does."""
    # What budgets keep in reserve for plans by calls is left out, where nothing has to fit.
    needed = max(step.peak_bytes, step.allocated_bytes or 0) if by_calls else step.needed_bytes
    if needed <= (1 - _LEAST_GAIN) * plain.needed_bytes:
        return None
    whole, constant = plain.needed_bytes, plain.peak_bytes - plain.activation_bytes
    if constant > whole / 2:
        return (
            f"weights, their gradients and optimizer slots are {format_bytes(constant)} of {format_bytes(whole)}, "
            "which no plan reduces. A larger batch, mixed precision or an optimizer with fewer slots shifts that"
        )
    kept = max((s for s in plan.segments if s.obstacle), key=lambda s: s.inside_bytes or 0, default=None)
    if kept is not None and (kept.inside_bytes or 0) > plain.activation_bytes / 2:
        return f"{kept} has to be kept: {kept.obstacle}"
    outlook = plan.outlook
    if outlook is not None and outlook.floor_bytes > 0.9 * outlook.plain_bytes:
        what = "the outputs and their loss" if outlook.floor_node == plan.segments[-1].nodes[-1] else "one layer"
        needs = f"needs {format_bytes(outlook.floor_bytes)} of {format_bytes(outlook.plain_bytes)} by itself"
        text = f"{what} ({outlook.floor_node!r}) {needs}, activations and workspace"
        return f"{text}. A smaller batch helps"
    return "no known plan needs less. A smaller batch helps"


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


def planned_with(
    plan: Callable[[Any, Shapes], Planned], before: tuple[Any, Shapes] | None, specs: Any, shapes: Shapes
) -> Planned:
    """Call `plan` for a batch as large as it and the one `before` in each size; for it alone if none fits both."""
    # Inputs of which one is longer and the other shorter may take turns.
    both = None if before is None else batch_specs.holding_both(specs, before[0])
    if before is not None and both is not None:
        with contextlib.suppress(InfeasibleBudgetError):
            return plan(both, batch_specs.largest(shapes, before[1]))
    return plan(specs, shapes)
