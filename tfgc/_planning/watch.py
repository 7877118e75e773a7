"""What real steps need by the plans that were tried, and when another plan should be.

Measured bytes move by some percent from step to step, and the first step by a plan makes buffers of its own (constants,
layouts of weights): it is judged only if it needs more than the budget, else three steps are.
"""

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

from tfgc._errors import InfeasibleBudgetError
from tfgc._units import format_bytes, format_percent

# What allocators add to a simulated peak, at most, before it was measured.
ADDED = 1.3
# Steps by a plan that holds until it is judged, and changes of plan at most.
STEPS, MOST_CHANGES = 3, 3
# A step that needs less of its budget may do with less recomputation.
_ROOMY = 0.95
# What of the budget the next plan should need by what was measured: in the first steps, where it may miss once more,
# and later. The ratio of one plan predicts the next one within 5 %.
_AIM, _LATER_AIM = 0.98, 0.95


@dataclasses.dataclass(eq=False)
class _Tried:
    """A plan, the steps that ran by it, and the most bytes that one needed, 0 if none counts so far; and the least."""

    plan: Any
    steps: int = 0
    needed_bytes: int = 0
    fewest_bytes: int = 0
    is_least: bool = False  # no plan needs less


class Watch:
    """The plans of a step that were tried; one is in use.

    Args:
        plan: The first one. It has `peak_bytes` of its own buffers, `overhead`, and why it is `unchanged`.
        variable_bytes: Of variables that the step holds.
        given_bytes: Of its arguments.
        budget_bytes: What it may need, or None.
        ratio: Measured by simulated bytes without variables, if an earlier step was measured.

    Attributes:
        ratio: The same of the step that was measured last.
        changes: How often the plan was changed by that.
        change: Why it was the last time.
    """

    def __init__(
        self, plan: Any, variable_bytes: int, given_bytes: int, budget_bytes: int | None, ratio: float | None
    ) -> None:
        self._variables, self._given, self._budget, self.ratio = variable_bytes, given_bytes, budget_bytes, ratio
        self._all: list[_Tried] = []
        self.changes = self._steps = 0
        self.change = ""
        self._begin(plan)

    @property
    def steps(self) -> int:
        """Steps by the plan in use."""
        return self._now.steps

    @property
    def needed_bytes(self) -> int | None:
        """What a step was measured to need most by the plan in use; None before."""
        return self._now.needed_bytes or None

    @property
    def least_bytes(self) -> int:
        """The least that a plan was measured to need."""
        return min(tried.needed_bytes for tried in self._all if tried.needed_bytes)

    @property
    def is_over(self) -> bool:
        """Whether a step needed more than the budget by the plan in use."""
        return self._budget is not None and self._now.needed_bytes > self._budget

    @property
    def may_change(self) -> bool:
        """Whether the plan in use should change: it needs more than the budget, or so little that another may do."""
        if self._budget is None or self.changes == MOST_CHANGES:
            return False
        is_roomy = (
            not self._now.plan.unchanged and self._now.steps == STEPS and self._now.needed_bytes < _ROOMY * self._budget
        )
        # One that turns out to need more is taken back, which is another change.
        return self.is_over or (is_roomy and self.changes + 1 < MOST_CHANGES)

    def saw(self, made_bytes: int) -> None:
        """Take in what a step needed at its peak by the plan in use, without variables."""
        now = self._now
        now.steps, self._steps = now.steps + 1, self._steps + 1
        needed = self._variables + made_bytes
        now.fewest_bytes = min(now.fewest_bytes or needed, needed)
        if now.steps > 1 or (self._budget is not None and needed > self._budget):
            now.needed_bytes = max(now.needed_bytes, needed)
            simulated = self._given + now.plan.peak_bytes
            self.ratio = (now.needed_bytes - self._variables) / simulated if simulated else None

    @property
    def room(self) -> int:
        """Bytes that the next plan may be simulated to make, by what was measured."""
        assert self._budget is not None
        aim = _AIM if self._steps < STEPS else _LATER_AIM
        return int((aim * self._budget - self._variables) / (self.ratio or ADDED)) - self._given

    def next(self, within: Callable[[int], Any], least: Callable[[], Any]) -> Any:
        """The plan for the steps that follow, if it should be another one; else None.

        Args:
            within: Gives the plan of least work in a room, or raises `InfeasibleBudgetError`.
            least: Gives the plan of least peak.

        Raises:
            InfeasibleBudgetError: If it is the least plan, and three steps needed more than the budget.
        """
        if not self.may_change:
            return None
        assert self._budget is not None
        now = self._now
        if not self.is_over:
            with contextlib.suppress(InfeasibleBudgetError):
                found = within(self.room)
                if found.overhead < now.plan.overhead and not self._has_failed(found):
                    return found
            return None
        if not now.is_least:
            if (held := self.held()) is not None:
                return held
            try:
                found = within(self.room)
            except InfeasibleBudgetError:
                found = least()
            if found.peak_bytes < now.plan.peak_bytes:
                return found
            now.is_least = True
        if now.steps == STEPS and now.fewest_bytes > self._budget:
            raise InfeasibleBudgetError(self._budget, self.least_bytes, "the step", " as measured")
        return None  # One step or another needs more: the budget is missed.

    def held(self) -> Any:
        """Of the plans that were measured to hold, that of least work, or None."""
        assert self._budget is not None
        found = [tried.plan for tried in self._all if 0 < tried.needed_bytes <= self._budget]
        return min(found, key=lambda plan: plan.overhead, default=None)

    def _has_failed(self, plan: Any) -> bool:
        """Whether a plan that needs no more was measured to need more than the budget."""
        assert self._budget is not None
        failed = [tried.plan.peak_bytes for tried in self._all if tried.needed_bytes > self._budget]
        return any(plan.peak_bytes >= most for most in failed)

    def use(self, plan: Any) -> None:
        """Go on with another plan."""
        assert self._budget is not None
        part = self._now.needed_bytes / self._budget - 1
        much = format_percent(abs(part), ".1g" if abs(part) < 0.01 else ".0f")
        budget = f"the budget of {format_bytes(self._budget)}"
        took = f"took {much} more than {budget}" if part > 0 else f"left {much} of {budget}"
        more = f"{format_percent(plan.overhead, '.0f')} more work" if not plan.unchanged else "nothing is recomputed"
        self.change = f"step {self._steps} {took}; the plan was changed: {more}"
        self.changes += 1
        self._begin(plan)

    def _begin(self, plan: Any) -> None:
        known = next((tried for tried in self._all if tried.plan is plan), None)
        self._now = known or _Tried(plan)
        self._now.steps = 0
        if known is None:
            self._all.append(self._now)
