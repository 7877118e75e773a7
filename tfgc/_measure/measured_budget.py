"""Find the plan of a budget by what its step is measured to need, where predictions are off.

What a step needs more than predicted is mostly workspace, gaps between chunks, and operations that run beside each
other at the peak. It hardly changes from one plan to the next, and not in proportion to what the step needs. So the
bytes that the last plan was measured to need on top of its prediction are taken off the budget that the next one is
predicted against. That goes further down after a miss than a factor would, and less far up where there is room.
"""

import dataclasses
from collections.abc import Callable

from tfgc._core.plan import Plan
from tfgc._errors import InfeasibleBudgetError
from tfgc._simulate.simulator import Prediction

# Plans that are run, at most; the last of them the one that is predicted to need least.
RUNS = 5
# A plan that needs this much less than predicted leaves room for a faster one.
CLOSE = 0.05


@dataclasses.dataclass(frozen=True)
class Run:
    """A plan that was run.

    Attributes:
        plan: The plan.
        predicted: What its step was predicted to need, in bytes.
        measured: What it was measured to need.
        node: The node at the predicted peak.
        limit: The corrected budget: what the step may be predicted to need.
    """

    plan: Plan
    predicted: int
    measured: int
    node: str
    limit: int


def fitting(
    budget: int,
    ask: Callable[[int], Plan],
    predict: Callable[[Plan], Prediction],
    measure: Callable[[Plan, Prediction], int],
) -> tuple[Run, int]:
    """The fastest plan that was found to fit when measured, and how many were run.

    Args:
        budget: What the step may be measured to need.
        ask: Function from what it may be predicted to need to the fastest plan; raises `InfeasibleBudgetError`.
        predict: Function from a plan to what its step is predicted to need.
        measure: Function from a plan and its prediction to what its step is measured to need.

    Raises:
        InfeasibleBudgetError: If none is found; it names what the plan that should need least was measured to need.
    """
    runs: list[Run] = []
    limit, most = budget, None
    while len(runs) < RUNS:
        plan, least = _asked(ask, limit if len(runs) < RUNS - 1 or _best(runs, budget) else 1)
        step = predict(plan)
        if any(run.predicted == step.needed_bytes for run in runs):
            break
        runs.append(Run(plan, step.needed_bytes, measure(plan, step), step.node, limit))
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
    best = _best(runs, budget)
    if best is None:
        raise InfeasibleBudgetError(
            budget, runs[-1].measured, runs[-1].node, f" as measured (predicted: {runs[-1].predicted:,})"
        )
    return best, len(runs)


def _asked(ask: Callable[[int], Plan], limit: int) -> tuple[Plan, bool]:
    """The plan for a limit, or that which needs least; and whether it is the latter."""
    try:
        return ask(limit), False
    except InfeasibleBudgetError as error:
        return ask(error.least), True


def _best(runs: list[Run], budget: int) -> Run | None:
    """Of the runs that fit the one of the fastest plan."""
    return max((run for run in runs if run.measured <= budget), key=lambda run: run.limit, default=None)
