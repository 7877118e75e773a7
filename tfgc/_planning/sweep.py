"""The front of plans of one model, as records to render."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import keras

from tfgc._core.plan import Plan
from tfgc._errors import InfeasibleBudgetError, PlanMismatchError, check_int
from tfgc._planning import ahead
from tfgc._planning.budgets import budget_bytes, resident_bytes
from tfgc._planning.step_ahead import StepAhead
from tfgc._records.front import BudgetChoice, FrontPoint, FrontRecord
from tfgc._simulate.simulator import Prediction
from tfgc._tracing import synthetic
from tfgc._units import format_bytes


def sweep(
    model: keras.Model,
    network: str,
    batch_size: int | None,
    *,
    points: int = 12,
    budgets: Sequence[int | str] = (),
    plans: Sequence[tuple[str, Plan]] = (),
    input_shapes: synthetic.Shapes | None = None,
    example: Any = None,
    optimizer: keras.Optimizer | str | None = None,
    mode: str = "graph",
) -> FrontRecord:
    """Return the `FrontRecord` of a model, which is called `network`; arguments as for `tfgc.plan`, and others.

    It has so many `points` besides the plans that `budgets` buy, and `plans` by their names beside the front.
    """
    shown: dict[str, Any] = {"points": check_int("points", points, least=2), "budgets": budgets}
    shown["resident"] = resident_bytes(model)
    for budget in budgets:  # a wrong one is refused before anything is planned, which may take minutes
        budget_bytes(budget, lambda: 0)
    ahead.check_batch(model, batch_size, example)
    step = ahead.plans_for(model, batch_size, example, mode, input_shapes, optimizer=optimizer)
    check(plans, step.check)
    return front_of(step, network, others=plans, **shown)


def check(plans: Iterable[tuple[str, Plan]], check: Callable[[Plan], object]) -> None:
    """Call `check` with each plan; what `PlanMismatchError` it raises says the name of that plan."""
    for name, plan in plans:
        try:
            check(plan)
        except PlanMismatchError as error:
            raise PlanMismatchError(f"{name}: {error}") from None


def front_of(
    plans: StepAhead,
    network: str,
    *,
    points: int = 12,
    budgets: Sequence[int | str] = (),
    others: Sequence[tuple[str, Plan]] = (),
    resident: int = 0,
) -> FrontRecord:
    """The `FrontRecord` of one model, of which `resident` bytes are in memory already."""
    front, bought = plans.front(), list[tuple[str, int, Plan | None, int | None]]()
    for budget in budgets:
        limit, found, least = budget_bytes(budget, lambda: plans.plain_bytes, resident), None, None
        try:
            found = plans.fitting(budget)
            if found not in front:
                front.insert(sum(_peak(other) < _peak(found) for other in front), found)
        except InfeasibleBudgetError as error:
            least = error.least
        bought.append((str(budget), limit, found, least))
    positions = [None if found is None else front.index(found) for _, _, found, _ in bought]
    last = len(front) - 1
    evenly = {round(i * last / (points - 1)) for i in range(points)}
    chosen = evenly.union(i for i in positions if i is not None)
    baseline = plans.estimate(front[last])

    names = {0: "least", last: "plain"}
    points_at = {i: _point(names.get(i, ""), front[i], plans, baseline) for i in sorted(chosen)}
    choices = tuple(
        BudgetChoice(budget, limit, None if i is None else points_at[i], least)
        for (budget, limit, _, least), i in zip(bought, positions)
    )
    return FrontRecord(
        network=network,
        batch_size=cast(int, front[last].batch_size),  # known, as for each plan of a whole step
        unit="flop",
        fixed_bytes=baseline.fixed_bytes,
        floor_bytes=plans.floor[0] + baseline.fixed_bytes,
        floor_node=plans.floor[1],
        points=tuple(points_at.values()),
        others=tuple(_point(name, plan, plans, baseline) for name, plan in others),
        choices=choices,
    )


def _peak(plan: Plan) -> int:
    return 0 if plan.outlook is None else plan.outlook.peak_bytes


def _point(name: str, plan: Plan, plans: StepAhead, baseline: Prediction) -> FrontPoint:
    """The `FrontPoint` of a plan among `plans`, from what is predicted of its whole step and of the plain one."""
    step = plans.estimate(plan)
    return FrontPoint(
        name=f"{name}, {format_bytes(step.host_bytes)} on the host" if step.host_bytes else name,
        peak_bytes=step.peak_bytes,
        allocated_bytes=step.peak_bytes,
        activation_bytes=step.activation_bytes,
        cut_off=1 - (step.peak_bytes - step.fixed_bytes) / (baseline.peak_bytes - baseline.fixed_bytes),
        overhead=step.overhead,
        segments=len(plan.segments),
        nested=plan.is_nested,
        needed_bytes=step.needed_bytes,
    )
