"""Find the plan of a budget by what its step is measured to need, where predictions are off.

What a step needs more than predicted is mostly workspace, gaps between chunks, and operations that run at the same
time at the peak. It hardly changes from one plan to the next, and not in proportion to what the step needs. So the
bytes that the last plan was measured to need on top of its prediction are taken off the budget that the next one is
predicted against. After a miss this lowers the budget more than a factor would; where there is room it raises it less.
"""

import dataclasses
from collections.abc import Callable

from tfgc._core.plan import Plan
from tfgc._errors import InfeasibleBudgetError
from tfgc._simulate.simulator import Prediction

# Plans that are run at most, apart from neighbours; the last of them the one that is predicted to need least.
RUNS = 5
# Where that one does not fit, those that are predicted to need a little more are run: predictions differ from what is
# measured by more than such plans differ from each other.
NEIGHBOURS = (0.01, 0.02, 0.04)
# A plan that needs this much less than predicted leaves room for a faster one.
CLOSE = 0.05


@dataclasses.dataclass(frozen=True)
class Run:
    """A plan that was run, bytes that its step was predicted and measured to need, and the node at the former peak."""

    plan: Plan
    predicted: int
    measured: int
    node: str
    limit: int  # the corrected budget: what the step might be predicted to need


def fitting(
    budget: int,
    ask: Callable[[int], Plan],
    predict: Callable[[Plan], Prediction],
    measure: Callable[[Plan, Prediction], int],
) -> tuple[Run, int]:
    """The fastest plan that was found to fit when measured, and how many were run.

    `ask` gives the fastest plan for what a step may be predicted to need, or raises `InfeasibleBudgetError`; `measure`
    gives for a plan and its prediction the bytes that its step needs. If none is found, an `InfeasibleBudgetError`
    names what the plan that should need least was measured to need.
    """
    runs: list[Run] = []

    def is_run(plan: Plan, limit: int) -> bool:
        step = predict(plan)
        if any(run.predicted == step.needed_bytes for run in runs):
            return False
        runs.append(Run(plan, step.needed_bytes, measure(plan, step), step.node, limit))
        return True

    limit, most = budget, None
    while len(runs) < RUNS:
        plan, least = _asked(ask, limit if len(runs) < RUNS - 1 or _best(runs, budget) else 1)
        if not is_run(plan, limit):
            break
        last = runs[-1]
        if last.measured > budget:
            if least:
                break
            most = min(most or last.predicted, last.predicted)
        elif last.measured >= (1 - CLOSE) * last.predicted:
            break
        limit = budget + last.predicted - last.measured
        limit = limit if most is None else min(limit, most - 1)
        best = _best(runs, budget)
        if best is not None and limit <= best.predicted:
            break
    for limit in _neighbours(ask) if _best(runs, budget) is None else ():
        if _best(runs, budget) is None:
            is_run(ask(limit), limit)
    best = _best(runs, budget)
    if best is None:
        run = min(runs, key=lambda run: run.measured)
        raise InfeasibleBudgetError(budget, run.measured, run.node, " as measured")
    return best, len(runs)


def _neighbours(ask: Callable[[int], Plan]) -> list[int]:
    """Limits a little above the smallest budget that works, which is above the least prediction by a reserve."""
    try:
        ask(1)
    except InfeasibleBudgetError as error:
        return [int((1 + share) * error.least) for share in NEIGHBOURS]
    return []


def _asked(ask: Callable[[int], Plan], limit: int) -> tuple[Plan, bool]:
    """The plan for a limit, or that which needs least; and whether it is the latter."""
    try:
        return ask(limit), False
    except InfeasibleBudgetError as error:
        return ask(error.least), True


def _best(runs: list[Run], budget: int) -> Run | None:
    """Of the runs that fit the one of the fastest plan."""
    return max((run for run in runs if run.measured <= budget), key=lambda run: run.limit, default=None)
