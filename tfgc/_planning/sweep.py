"""The front of plans of one model, as records to render."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import cast

import keras

from tfgc import strategies
from tfgc._core.buffers import Buffers
from tfgc._core.graph import Graph
from tfgc._core.plan import Plan
from tfgc._errors import InfeasibleBudgetError, PlanMismatchError, check_int
from tfgc._planning import annotated, budget_fit
from tfgc._records.front import BudgetChoice, Front, FrontPoint
from tfgc._simulate import outlooks, simulator
from tfgc._simulate.simulator import Prediction
from tfgc._tracing import keras_graph
from tfgc.strategies import budget as budget_strategy


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
) -> Front:
    """Return the `Front` of a model.

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
    return front_of(graph, annotated.fixed_bytes(model, optimizer), network, points, budgets, plans)


def front_of(
    graph: Graph,
    fixed: int,
    network: str,
    points: int = 12,
    budgets: Sequence[int | str] = (),
    plans: Sequence[tuple[str, Plan]] = (),
    front: Sequence[tuple[int, Plan]] | None = None,
) -> Front:
    """The `Front` of an annotated graph of a whole step, of which `fixed` bytes are there all the time.

    `front` is that of the strategy `budget`, where it is known already.
    """
    limits = [annotated.budget_bytes(budget, graph, fixed) for budget in budgets]
    front = budget_strategy.front(graph) if front is None else front
    fits = [_bought(graph, front, limit, fixed) for limit in limits]
    bought = [next((i for i, (_, plan) in enumerate(front) if plan is found), None) for found, _ in fits]
    shown = {round(i * (len(front) - 1) / (points - 1)) for i in range(points)} | {i for i in bought if i is not None}
    baseline = simulator.estimate(graph, front[-1][1], fixed)

    def point(name: str, plan: Plan) -> FrontPoint:
        return _point(name, plan, simulator.estimate(graph, plan, fixed), baseline)

    names = {0: "least", len(front) - 1: "plain"}
    points_at = {i: point(names.get(i, ""), front[i][1]) for i in sorted(shown)}
    choices = tuple(
        BudgetChoice(str(budget), limit, None if i is None else points_at[i], least)
        for budget, limit, i, (_, least) in zip(budgets, limits, bought, fits)
    )
    optimal = strategies.apply("optimal", dataclasses.replace(graph, whole_step=False))
    others = [("optimal", optimal), *plans]
    floor_bytes, floor_node = outlooks.floor(graph, Buffers(graph))
    return Front(
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
        allocated_bytes=cast(int, step.allocated_bytes),
        activation_bytes=step.activation_bytes,
        cut_off=1 - (step.peak_bytes - step.fixed_bytes) / (baseline.peak_bytes - baseline.fixed_bytes),
        overhead=step.overhead,
        segments=len(plan.segments),
        nested=plan.is_nested,
    )


def _bought(graph: Graph, front: Sequence[tuple[int, Plan]], limit: int, fixed: int) -> tuple[Plan | None, int | None]:
    """The plan that a budget buys and None, or None and the least budget that buys one."""
    try:
        return budget_fit.from_front(graph, front, limit, fixed), None
    except InfeasibleBudgetError as error:
        return None, error.least
