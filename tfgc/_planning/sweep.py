"""The front of plans of one model, as records to render."""

import dataclasses

from tfgc import _fitting, _judge, _simulate, _sizes, _trace, strategies
from tfgc._buffers import Buffers
from tfgc._errors import InfeasibleBudgetError, PlanMismatchError, whole
from tfgc._front import Choice, Front
from tfgc._plan_report import point
from tfgc.strategies import budget as budget_strategy


def sweep(
    model, network, batch_size, *, points=12, budgets=(), plans=(), input_shapes=None, measure=False, optimizer=None
):  # fmt: skip
    """Return the `Front` of a model.

    Args:
        model, batch_size, input_shapes, measure, optimizer: As for `tfgc.plan`.
        network: Its name.
        points: How many plans of the front to tell of, besides those that budgets choose.
        budgets: Budgets to choose a plan for, as people write them.
        plans: Pairs of a name and a `Plan`, to tell of beside the front.
    """
    points = whole("points", points, least=2)
    declared = _trace.read(model)
    for name, plan in plans:
        try:
            plan.check(declared)
        except PlanMismatchError as error:
            raise PlanMismatchError(f"{name}: {error}") from None
    graph = _sizes.graph_of(model, batch_size, input_shapes, None, measure=measure, whole_step=True)
    return front_of(graph, _sizes.fixed_bytes(model, optimizer), network, points, budgets, plans)


def front_of(graph, fixed, network, points=12, budgets=(), plans=(), front=None):
    """The `Front` of an annotated graph of a whole step, of which `fixed` bytes are there all the time.

    `front` is that of the strategy `budget`, where it is known already.
    """
    limits = [_sizes.budget_bytes(budget, graph, fixed) for budget in budgets]
    front = budget_strategy.front(graph) if front is None else front
    fits = [_bought(graph, front, limit, fixed) for limit in limits]
    bought = [next((i for i, (_, plan) in enumerate(front) if plan is found), None) for found, _ in fits]
    shown = {round(i * (len(front) - 1) / (points - 1)) for i in range(points)}.union(bought) - {None}
    predicted = lambda plan: _simulate.estimate(graph, plan, fixed)
    plain = predicted(front[-1][1])
    names = {0: "least", len(front) - 1: "plain"}
    told = {i: point(names.get(i, ""), plan, predicted(plan), plain) for i in sorted(shown) for plan in [front[i][1]]}
    choices = tuple(
        Choice(str(budget), limit, told.get(i), least)
        for budget, limit, i, (_, least) in zip(budgets, limits, bought, fits)
    )
    optimal = strategies.apply("optimal", dataclasses.replace(graph, whole_step=False))
    others = [("optimal", optimal), *plans]
    floor_bytes, floor_node = _judge.floor(graph, Buffers(graph))
    return Front(
        network=network,
        batch_size=graph.batch_size,
        unit=plain.unit,
        fixed_bytes=fixed,
        floor_bytes=floor_bytes + fixed,
        floor_node=floor_node,
        points=tuple(told.values()),
        others=tuple(point(name, plan, predicted(plan), plain) for name, plan in others),
        choices=choices,
    )


def _bought(graph, front, limit, fixed):
    """The plan that a budget buys and None, or None and the least budget that buys one."""
    try:
        return _fitting.from_front(graph, front, limit, fixed), None
    except InfeasibleBudgetError as error:
        return None, error.least
