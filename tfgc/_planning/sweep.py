"""The front of plans of one model, as records to render."""

from tfgc import strategies
from tfgc._errors import InfeasibleBudgetError, PlanMismatchError, check_int
from tfgc._planning import annotated
from tfgc._records.front import BudgetChoice, FrontPoint, FrontRecord
from tfgc._simulate import outlooks, simulator
from tfgc._tracing import keras_graph


def sweep(
    model, network, batch_size, *, points=12, budgets=(), plans=(), input_shapes=None, measure=False, optimizer=None
):  # fmt: skip
    """Return the `FrontRecord` of a model.

    Args:
        model, batch_size, input_shapes, measure, optimizer: As for `tfgc.plan`.
        network: Its name.
        points: How many plans of the front to tell of, besides those that budgets choose.
        budgets: Budgets to choose a plan for, as people write them.
        plans: Pairs of a name and a `Plan`, to tell of beside the front.
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


def front_of(graph, fixed, network, points=12, budgets=(), plans=(), frontier=None):
    """The `FrontRecord` of an annotated graph of a whole step, of which `fixed` bytes are there all the time.

    `frontier` is that of the strategy `budget`, where it is known already.
    """
    limits = [annotated.budget_bytes(budget, graph, fixed) for budget in budgets]
    frontier = strategies.frontier(graph) if frontier is None else frontier
    last = len(frontier.plans) - 1
    fits = [_bought(frontier, limit, fixed) for limit in limits]
    bought = [next((i for i, plan in enumerate(frontier.plans) if plan is found), None) for found, _ in fits]
    shown = {round(i * last / (points - 1)) for i in range(points)}.union(i for i in bought if i is not None)
    predicted = lambda plan: simulator.estimate(graph, plan, fixed)
    plain = predicted(frontier.plans[last])
    names = {0: "least", last: "plain"}
    told = {
        i: _point(names.get(i, ""), plan, predicted(plan), plain) for i in sorted(shown) for plan in [frontier.plans[i]]
    }
    choices = tuple(
        BudgetChoice(str(budget), limit, told.get(i), least)
        for budget, limit, i, (_, least) in zip(budgets, limits, bought, fits)
    )
    optimal = strategies.apply("optimal", graph.counting(whole_step=False))
    others = [("optimal", optimal), *plans]
    floor_bytes, floor_node = outlooks.floor(graph)
    return FrontRecord(
        network=network,
        batch_size=graph.batch_size,
        unit=plain.unit,
        fixed_bytes=fixed,
        floor_bytes=floor_bytes + fixed,
        floor_node=floor_node,
        points=tuple(told.values()),
        others=tuple(_point(name, plan, predicted(plan), plain) for name, plan in others),
        choices=choices,
    )


def _point(name, plan, step, plain):
    """The `FrontPoint` of a plan from its whole step predicted, and the plain one."""
    return FrontPoint(
        name=name,
        peak_bytes=step.peak_bytes,
        allocated_bytes=step.allocated_bytes,
        activation_bytes=step.activation_bytes,
        cut_off=1 - (step.peak_bytes - step.fixed_bytes) / (plain.peak_bytes - plain.fixed_bytes),
        overhead=step.overhead,
        segments=len(plan.segments),
        nested=plan.is_nested,
    )


def _bought(frontier, limit, fixed):
    """The plan that a budget buys and None, or None and the least budget that buys one."""
    try:
        return frontier.fitting(limit, fixed), None
    except InfeasibleBudgetError as error:
        return None, error.least
