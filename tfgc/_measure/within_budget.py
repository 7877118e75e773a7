"""The plan of a budget by what its step is measured to need: chosen as in training (`_planning.watch`)."""

from typing import NamedTuple

from tfgc._core.confirmation import Confirmation
from tfgc._core.plan import Plan
from tfgc._errors import InfeasibleBudgetError
from tfgc._measure.measured_step import MeasuredStep
from tfgc._planning.watch import ADDED, STEPS, Watch
from tfgc._progress import Progress
from tfgc._simulate.simulator import Prediction


class _Tried(NamedTuple):
    """A plan, and what its step is predicted to need."""

    plan: Plan
    step: Prediction

    @property
    def peak_bytes(self) -> int:
        return self.step.needed_bytes - self.step.fixed_bytes

    @property
    def overhead(self) -> float:
        return self.step.overhead

    @property
    def unchanged(self) -> bool:
        return not self.step.overhead


def found(asked: MeasuredStep, total: int, runs: Progress) -> tuple[Plan, Confirmation, float | None]:
    """The plan of least work that was measured to need no more than a budget, what was measured, and its ratio.

    Raises:
        InfeasibleBudgetError: If the plan that should need least was measured to need more.
    """

    def tried(limit: int, ratio: float | None = 1.0) -> _Tried:
        plan = asked.plan(f"{max(limit, 1)}B", ratio)
        return _Tried(plan, asked.predict(plan))

    def least() -> _Tried:
        try:
            return tried(1)
        except InfeasibleBudgetError as error:
            return tried(error.least)

    try:
        now = tried(total, None)
    except InfeasibleBudgetError as error:
        if error.least > ADDED * total:
            raise
        now = tried(error.least)
    fixed, known = now.step.fixed_bytes, dict[str, int]()
    watch = Watch(now, fixed, 0, total, None)
    while True:
        text = now.plan.to_json()
        known[text] = known.get(text) or asked.measure(now.plan, now.step, runs)
        for _ in range(STEPS):  # which that has run
            watch.saw(known[text] - fixed)
        try:
            other = watch.next(lambda room: tried(room + fixed), least)
        except InfeasibleBudgetError:
            raise InfeasibleBudgetError(total, watch.least_bytes, now.step.node, " as measured") from None
        if other is None:
            break
        watch.use(now := other)
    if watch.is_over:
        raise InfeasibleBudgetError(total, watch.least_bytes, now.step.node, " as measured")
    needed = known[now.plan.to_json()]
    return now.plan, Confirmation(needed, now.step.needed_bytes, total, len(known), asked.target), watch.ratio
