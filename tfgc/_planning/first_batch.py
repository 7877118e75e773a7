"""Plan for one call of a model, when its sizes and its mode are there to be seen."""

import dataclasses
import time
from typing import Any

import keras

from tfgc._calls.call_plans import CallPlans
from tfgc._calls.own_step_plans import OwnStep
from tfgc._calls.tracing import Arguments
from tfgc._core.graph import Graph
from tfgc._core.plan import Plan
from tfgc._costs import node_costs
from tfgc._errors import OptionError
from tfgc._planning import annotated, batch_sizes, budgets, by_calls, counted_step, little_saved, planner
from tfgc._planning.budgets import Budget
from tfgc._planning.planner import Strategy
from tfgc._tracing import example_sizes


@dataclasses.dataclass(frozen=True)
class Request:
    """What `tfgc.enable` was asked for.

    Attributes:
        strategy: A strategy, or None for the least peak or the fastest plan within the budget.
        budget: The budget as it was written, or None.
        options: Options of the strategy.
        layers: The layers to choose among, where the model is planned by calls; None: all.
    """

    strategy: Strategy | None
    budget: Budget | None
    options: dict[str, Any]
    layers: tuple[keras.Layer, ...] | None = None


@dataclasses.dataclass(frozen=True)
class PlannedStep:
    """A plan for one call, and what it promises there.

    Attributes:
        plan: The plan.
        mode: The mode of the call.
        batch_size: Samples in the batch that it was made for; None: unknown.
        predicted_bytes: The peak of the whole step, as TensorFlow's allocator should report it; None where batch or
            sizes are unknown, like the next one.
        plain_bytes: The same if nothing is recomputed.
        overhead: Work on top of the plain step's, as a fraction of it; None where sizes are unknown.
        seconds: How long planning took.
        unchanged: Why nothing is recomputed, although no budget and no strategy says so; else None.
        own_step: The batch that the model's own `train_step` was given, as `tf.TensorSpec`s, where the figures count
            that whole step; else None.
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

    def holds_for(self, batch_size: int | None, budget: Budget | None, own_step: Any = None) -> bool:
        """Whether a batch of this size runs by it: one no larger, if there is a budget; any, if there is none.

        Where recomputing would have saved next to nothing, it may save something for more than twice the samples.

        Args:
            batch_size: Samples in the batch of the call.
            budget: The budget.
            own_step: The batch of the model's own `train_step`, none of whose tensors may be larger under a budget.
        """
        if budget is not None and self.own_step is not None and own_step is not None:
            return batch_sizes.are_no_larger(*map(batch_sizes.shapes_of, (own_step, self.own_step)))
        if batch_size is None or self.batch_size is None:
            return True
        if budget is None:
            return self.unchanged is None or batch_size <= 2 * self.batch_size
        return batch_size <= self.batch_size

    def by(self, plan: Plan, predicted_bytes: int) -> "PlannedStep":
        """The step by another plan."""
        overhead = None if plan.outlook is None else plan.outlook.overhead
        return dataclasses.replace(self, plan=plan, predicted_bytes=predicted_bytes, overhead=overhead)


@node_costs.remembered()
def plan_step(
    model: keras.Model, inputs: Any, mode: str, request: Request, own_step: OwnStep | None = None
) -> PlannedStep:
    """Plan the training step in which a functional model is called.

    Args:
        model: A functional or built Sequential model.
        inputs: Its inputs: tensors, or `tf.TensorSpec`s of them.
        mode: The mode of the call.
        request: What is asked for.
        own_step: The model's own `train_step`, where that makes the call.

    Raises:
        InfeasibleBudgetError: If nothing fits in the budget.
        OptionError: If there is a budget and the batch or other sizes are open.
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
    batch_size = example_sizes.batch_of(model, inputs)
    counted = graph.sizes_known and batch_size is not None
    if budget is not None and not counted:
        _refuse_open_sizes(graph, batch_size, budget)
    if request.strategy is None and budget is None and not graph.sizes_known:
        annotated.warn_of_open_sizes(graph)
    if not counted:
        strategy = request.strategy or ("optimal" if graph.sizes_known else "keep_all")
        plan = planner.choose(graph, strategy, None, request.options)
        plan = annotated.per_sample(plan, graph)
        overhead = None if plan.outlook is None else plan.outlook.overhead
        return PlannedStep(plan, mode, batch_size, None, None, overhead, time.perf_counter() - start)
    with budgets.explained(budget):
        plan, step, plain, counts_own_step = counted_step.choose(
            model, graph, "graph" if mode == "eager" else mode, request.strategy, budget, request.options, own_step
        )
    is_asked_for = request.strategy is not None or budget is not None
    unchanged = None if is_asked_for else little_saved.reason(plan, step, plain)
    if unchanged is not None:
        plan, step = Plan.from_cuts(graph, [], strategy="keep_all"), plain
    return PlannedStep(
        plan, mode, batch_size, step.needed_bytes, plain.needed_bytes, step.overhead, time.perf_counter() - start,
        unchanged, own_step.batch if counts_own_step and own_step is not None else None,
    )  # fmt: skip


def plan_step_by_calls(model: keras.Model, example: Any, mode: str, request: Request) -> PlannedStep:
    """Plan the training step of any model by the calls of its layers.

    Args:
        model: Any `keras.Model`.
        example: `tf.TensorSpec`s of a batch of fixed sizes, as `train_step` takes it, or of the `Arguments` of a call.
        mode: The mode of the call.
        request: What is asked for; it names no strategy.

    Raises:
        InfeasibleBudgetError: If nothing fits in the budget.
        UnsupportedModelError: If the model cannot be traced symbolically.
    """
    start, budget = time.perf_counter(), request.budget
    plans = CallPlans(model, example, request.layers, xla=mode == "xla")
    fixed = budgets.fixed_bytes(model)
    plain = plans.estimate(None, fixed)
    with budgets.explained(budget):
        plan = plans.least() if budget is None else by_calls.fitting(plans, model, budget, fixed)
    step = plans.estimate(plan, fixed)
    unchanged = little_saved.reason(plan, step, plain) if budget is None else None
    return PlannedStep(
        plan, mode, plan.batch_size, step.needed_bytes, plain.needed_bytes, step.overhead, time.perf_counter() - start,
        unchanged,
    )  # fmt: skip


def _refuse_open_sizes(graph: Graph, batch_size: int | None, budget: Budget) -> None:
    if batch_size is None:
        raise OptionError(
            f"budget={budget!r}: the step is traced without a batch size, so its bytes are not known. Fix it in the "
            "data, with dataset.batch(n, drop_remainder=True), or plan ahead: "
            f"tfgc.enable(model, tfgc.plan(model, batch_size=n, budget={budget!r}))"
        )
    if not any(spec.open for spec in graph.inputs.values()):
        graph.cut_bytes  # noqa: B018 - raises, and names the layer whose sizes are open
    annotated.warn_of_open_sizes(graph)
    raise OptionError(
        f"budget={budget!r}: sizes of the model's inputs are open in this call, so its bytes are not known. Plan ahead "
        f"for the largest: tfgc.enable(model, tfgc.plan(model, batch_size=n, input_shapes={{...}}, budget={budget!r}))"
    )
