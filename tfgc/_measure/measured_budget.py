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

Ask = Callable[[int], Plan]
Predict = Callable[[Plan], Prediction]
Measure = Callable[[Plan, Prediction], int]
# Plans that are run, at most; the last of them the one that is predicted to need least.
RUNS = 5
# Where that one does not fit, those that are predicted to need a little more are run: predictions differ from what is
# measured by more than such plans differ from each other.
NEIGHBOURS = (0.01, 0.02, 0.04)
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


def fitting(budget: int, ask: Ask, predict: Predict, measure: Measure) -> tuple[Run, int]:
    """The fastest plan that was found to fit when measured, and how many were run.

    Args:
        budget: What the step may be measured to need.
        ask: Function from what it may be predicted to need to the fastest plan; raises `InfeasibleBudgetError`.
        predict: Function from a plan to what its step is predicted to need.
        measure: Function from a plan and its prediction to what its step is measured to need.

    Raises:
        InfeasibleBudgetError: If none is found; it names what the plan that should need least was measured to need.
    """
    runs = _Runs(predict, measure)
    limit, most = budget, None
    while len(runs.found) < RUNS:
        plan, least = _asked(ask, limit if len(runs.found) < RUNS - 1 or runs.best(budget) else 1)
        if not runs.add(plan, limit):
            break
        last = runs.found[-1]
        if last.measured > budget:
            if least:
                break
            most = min(most or last.predicted, last.predicted)
        elif last.measured >= (1 - CLOSE) * last.predicted:
            break
        limit = budget + last.predicted - last.measured
        limit = limit if most is None else min(limit, most - 1)
        best = runs.best(budget)
        if best is not None and limit <= best.predicted:
            break
    for limit in _neighbours(ask) if runs.best(budget) is None else ():
        if runs.best(budget) is None:
            runs.add(ask(limit), limit)
    best = runs.best(budget)
    if best is None:
        least = runs.least()
        raise InfeasibleBudgetError(
            budget, least.measured, least.node, f" as measured (predicted: {least.predicted:,})"
        )
    return best, len(runs.found)


@dataclasses.dataclass
class _Runs:
    """Plans that were run, each prediction once."""

    predict: Predict
    measure: Measure
    found: list[Run] = dataclasses.field(default_factory=list)

    def add(self, plan: Plan, limit: int) -> bool:
        """Run a plan; False if one that is predicted to need the same was run."""
        step = self.predict(plan)
        if any(run.predicted == step.needed_bytes for run in self.found):
            return False
        self.found.append(Run(plan, step.needed_bytes, self.measure(plan, step), step.node, limit))
        return True

    def best(self, budget: int) -> Run | None:
        """Of those that fit the one of the fastest plan."""
        return max((run for run in self.found if run.measured <= budget), key=lambda run: run.limit, default=None)

    def least(self) -> Run:
        """The one that was measured to need least."""
        return min(self.found, key=lambda run: run.measured)


def _neighbours(ask: Ask) -> list[int]:
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
