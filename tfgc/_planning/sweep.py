"""The front of plans of one model, as records to render."""

from collections.abc import Mapping, Sequence
from typing import cast

import keras

from tfgc import strategies
from tfgc._core.graph import Graph
from tfgc._core.plan import Plan
from tfgc._errors import InfeasibleBudgetError, PlanMismatchError, check_int
from tfgc._planning import annotated
from tfgc._planning.budgets import budget_bytes, fixed_bytes, plain_bytes
from tfgc._records.front import BudgetChoice, FrontPoint, FrontRecord
from tfgc._simulate import outlooks, simulator
from tfgc._simulate.simulator import Prediction
from tfgc._tracing import keras_graph
from tfgc.strategies._frontier import Frontier


def sweep(
    model: keras.Model,
    network: str,
    batch_size: int | None,
    *,
    points: int = 12,
    budgets: Sequence[int | str] = (),
    plans: Sequence[tuple[str, Plan]] = (),
    input_shapes: Mapping[str, Sequence[int | None]] | None = None,
    measure: bool = False,
    optimizer: keras.Optimizer | str | None = None,
) -> FrontRecord:
    """Return the `FrontRecord` of a model.

    Args:
        model, batch_size, input_shapes, measure, optimizer: As for `tfgc.plan`.
        network: Its name.
        points: How many plans of the front to include, besides those that budgets choose.
        budgets: Budgets to choose a plan for, as people write them.
        plans: Pairs of a name and a `Plan`, to list beside the front.
    """
    points = check_int("points", points, least=2)
    declared = keras_graph.read(model)
    for name, plan in plans:
        try:
            plan.check(declared)
        except PlanMismatchError as error:
            raise PlanMismatchError(f"{name}: {error}") from None
    graph = annotated.graph_of(model, batch_size, input_shapes, None, measure=measure, whole_step=True)
    return front_of(graph, fixed_bytes(model, optimizer), network, points, budgets, plans)


def front_of(
    graph: Graph,
    fixed: int,
    network: str,
    points: int = 12,
    budgets: Sequence[int | str] = (),
    plans: Sequence[tuple[str, Plan]] = (),
    frontier: Frontier | None = None,
) -> FrontRecord:
    """The `FrontRecord` of an annotated graph of a whole step, of which `fixed` bytes are there all the time.

    `frontier` is that of the strategy `budget`, where it is known already.
    """
    limits = [budget_bytes(budget, lambda: plain_bytes(graph, fixed)) for budget in budgets]
    frontier = strategies.frontier(graph) if frontier is None else frontier
    last = len(frontier.plans) - 1
    fits = [_bought(frontier, limit, fixed) for limit in limits]
    bought = [next((i for i, plan in enumerate(frontier.plans) if plan is found), None) for found, _ in fits]
    shown = {round(i * last / (points - 1)) for i in range(points)}.union(i for i in bought if i is not None)
    baseline = simulator.estimate(graph, frontier.plans[last], fixed)

    def point(name: str, plan: Plan) -> FrontPoint:
        return _point(name, plan, simulator.estimate(graph, plan, fixed), baseline)

    names = {0: "least", last: "plain"}
    points_at = {i: point(names.get(i, ""), frontier.plans[i]) for i in sorted(shown)}
    choices = tuple(
        BudgetChoice(str(budget), limit, None if i is None else points_at[i], least)
        for budget, limit, i, (_, least) in zip(budgets, limits, bought, fits)
    )
    optimal = strategies.apply("optimal", graph.counting(whole_step=False))
    others = [("optimal", optimal), *plans]
    floor_bytes, floor_node = outlooks.floor(graph)
    return FrontRecord(
        network=network,
        batch_size=cast(int, graph.batch_size),  # known, since the graph is that of a whole step
        unit=baseline.unit,
        fixed_bytes=fixed,
        floor_bytes=floor_bytes + fixed,
        floor_node=floor_node,
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
