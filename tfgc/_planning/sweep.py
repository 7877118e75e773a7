"""The front of plans of one model, as records to render."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import keras

from tfgc import strategies
from tfgc._calls.call_plans import CallPlans
from tfgc._core.graph import Graph
from tfgc._core.plan import Plan
from tfgc._errors import InfeasibleBudgetError, PlanMismatchError, check_int
from tfgc._planning import annotated, by_calls
from tfgc._planning.budgets import budget_bytes, fixed_bytes, plain_bytes, resident_bytes
from tfgc._records.front import BudgetChoice, FrontPoint, FrontRecord
from tfgc._simulate import outlooks, simulator
from tfgc._simulate.simulator import Prediction
from tfgc._tracing import keras_graph
from tfgc._units import format_bytes
from tfgc.strategies._frontier import Frontier


def sweep(
    model: keras.Model,
    network: str,
    batch_size: int | None,
    *,
    points: int = 12,
    budgets: Sequence[int | str] = (),
    plans: Sequence[tuple[str, Plan]] = (),
    input_shapes: keras_graph.Shapes | None = None,
    example: Any = None,
    measure: bool = False,
    optimizer: keras.Optimizer | str | None = None,
    mode: str = "graph",
) -> FrontRecord:
    """Return the `FrontRecord` of a model that is called `network`.

    Args:
        model, batch_size, input_shapes, example, measure, optimizer, mode: As for `tfgc.plan`.
        points: How many plans of the front to include, besides those that budgets choose.
        budgets: Budgets to choose a plan for, as people write them.
        plans: Pairs of a name and a `Plan`, to list beside the front.
    """
    points, resident = check_int("points", points, least=2), resident_bytes(model)
    if by_calls.applies_to(model, example):
        by_calls.refuse(None, input_shapes, measure, None, {})
        call_plans = by_calls.plans_for(model, batch_size, example, mode)
        check(plans, call_plans.check)
        return front_by_calls(call_plans, fixed_bytes(model, optimizer), network, points, budgets, plans, resident)
    declared, fixed = keras_graph.read(model), fixed_bytes(model, optimizer)
    by_nodes = [(name, plan) for name, plan in plans if not plan.calls]
    check(by_nodes, lambda plan: plan.check(declared))
    graph = annotated.graph_of(
        model, batch_size, input_shapes, example, measure=measure, whole_step=True, xla=mode == "xla"
    )
    front = front_of(graph, fixed, network, points, budgets, by_nodes, resident)
    by_call = [(name, plan) for name, plan in plans if plan.calls]
    if by_call:
        call_plans = by_calls.plans_of_functional(model, front.batch_size, input_shapes, mode, example)
        check(by_call, call_plans.check)
        plain = call_plans.estimate(None, fixed)
        found = (_point(name, plan, call_plans.estimate(plan, fixed), plain) for name, plan in by_call)
        front = dataclasses.replace(front, others=(*front.others, *found))
    return front


def check(plans: Iterable[tuple[str, Plan]], check: Callable[[Plan], object]) -> None:
    """Call `check` with each plan; what `PlanMismatchError` it raises says the name of that plan."""
    for name, plan in plans:
        try:
            check(plan)
        except PlanMismatchError as error:
            raise PlanMismatchError(f"{name}: {error}") from None


def front_of(
    graph: Graph,
    fixed: int,
    network: str,
    points: int = 12,
    budgets: Sequence[int | str] = (),
    plans: Sequence[tuple[str, Plan]] = (),
    resident: int = 0,
    frontier: Frontier | None = None,
) -> FrontRecord:
    """The `FrontRecord` of an annotated graph of a whole step, of which `fixed` bytes are there all the time.

    `resident` of them are in memory now, and `frontier` is that of the strategy `budget`, where it is known already.
    """
    limits = [budget_bytes(budget, lambda: plain_bytes(graph, fixed), resident) for budget in budgets]
    frontier = strategies.frontier(graph) if frontier is None else frontier
    return _record(
        network,
        cast(int, graph.batch_size),  # known, since the graph is that of a whole step
        frontier.plans,
        lambda plan: simulator.estimate(graph, plan, fixed),
        [(str(budget), limit, *_bought(frontier, limit, fixed)) for budget, limit in zip(budgets, limits)],
        points,
        [("optimal", strategies.apply("optimal", graph.counting(whole_step=False))), *plans],
        outlooks.floor(graph),
    )


def front_by_calls(
    call_plans: CallPlans,
    fixed: int,
    network: str,
    points: int = 12,
    budgets: Sequence[int | str] = (),
    plans: Sequence[tuple[str, Plan]] = (),
    resident: int = 0,
) -> FrontRecord:
    """The `FrontRecord` of a model without a graph of nodes; arguments as for `front_of`."""
    front, bought = call_plans.front(), list[tuple[str, int, Plan | None, int | None]]()
    for budget in budgets:
        limit = budget_bytes(budget, lambda: call_plans.plain_bytes(fixed), resident)
        try:
            found = call_plans.fitting(limit, fixed)
            if found not in front:  # as low as the first one, by more work, but with smaller gaps between chunks
                front.insert(0, found)
            bought.append((str(budget), limit, front[front.index(found)], None))
        except InfeasibleBudgetError as error:
            bought.append((str(budget), limit, None, error.least))
    step = functools.partial(call_plans.estimate, fixed=fixed)
    return _record(network, cast(int, front[0].batch_size), front, step, bought, points, plans, call_plans.floor)


def _record(
    network: str,
    batch_size: int,
    front: Sequence[Plan],
    estimate: Callable[[Plan], Prediction],
    bought: Sequence[tuple[str, int, Plan | None, int | None]],
    points: int,
    others: Sequence[tuple[str, Plan]],
    floor: tuple[int, str],
) -> FrontRecord:
    """The `FrontRecord` of a front.

    Args:
        network, batch_size, front: What is trained, and the plans of its front.
        estimate: Function that predicts the step of a plan.
        bought: For each budget how it was written, its bytes, the plan on the front that it buys or None, and in that
            case the least budget that buys one.
        points: How many plans to include, besides those that budgets choose.
        others: Pairs of a name and a plan.
        floor: The bytes that no plan gets below, and the node that sets them.
    """
    last = len(front) - 1
    positions = [next((i for i, plan in enumerate(front) if plan is found), None) for _, _, found, _ in bought]
    shown = {round(i * last / (points - 1)) for i in range(points)}.union(i for i in positions if i is not None)
    baseline = estimate(front[last])

    def point(name: str, plan: Plan) -> FrontPoint:
        step = estimate(plan)
        label = f"{name}, {format_bytes(step.host_bytes)} on the host" if step.host_bytes else name
        return _point(label, plan, step, baseline)

    names = {0: "least", last: "plain"}
    points_at = {i: point(names.get(i, ""), front[i]) for i in sorted(shown)}
    choices = tuple(
        BudgetChoice(budget, limit, None if i is None else points_at[i], least)
        for (budget, limit, _, least), i in zip(bought, positions)
    )
    return FrontRecord(
        network=network,
        batch_size=batch_size,
        unit=baseline.unit,
        fixed_bytes=baseline.fixed_bytes,
        floor_bytes=floor[0] + baseline.fixed_bytes,
        floor_node=floor[1],
        points=tuple(points_at.values()),
        others=tuple(point(name, plan) for name, plan in others),
        choices=choices,
    )


def _point(name: str, plan: Plan, step: Prediction, baseline: Prediction) -> FrontPoint:
    """The `FrontPoint` of a plan, from what is predicted of its whole step and of the plain one."""
    return FrontPoint(
        name=name,
        peak_bytes=step.peak_bytes,
        allocated_bytes=simulator.allocated_bytes(step),
        activation_bytes=step.activation_bytes,
        cut_off=1 - (step.peak_bytes - step.fixed_bytes) / (baseline.peak_bytes - baseline.fixed_bytes),
        overhead=step.overhead,
        segments=len(plan.segments),
        nested=plan.is_nested,
    )


def _bought(frontier: Frontier, limit: int, fixed: int) -> tuple[Plan | None, int | None]:
    """The plan that a budget buys and None, or None and the least budget that buys one."""
    try:
        return frontier.fitting(limit, fixed), None
    except InfeasibleBudgetError as error:
        return None, error.least
