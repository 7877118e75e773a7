"""Which plan each trace of a `tfgc.function` runs by: chosen by simulation, corrected by what real steps need.

What a step needs is what it holds all the time (the variables that it uses, its arguments) plus the peak of what it
makes. The first plan leaves room for what an allocator adds. Then the peak of real steps is read: where it is above the
budget, or so far below that less recomputation fits, the next plan is chosen by the ratio of measured to simulated.
"""

import contextlib
import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from tfgc._core.plan import Plan
from tfgc._errors import InfeasibleBudgetError, PlanMismatchError
from tfgc._framework import private_api
from tfgc._planning import budgets, described
from tfgc._planning.function_peaks import unseen
from tfgc._planning.function_trace import given_to
from tfgc._planning.request import Request
from tfgc._planning.step_plans import Rewritten, StepPlans
from tfgc._planning.watch import ADDED, STEPS, Watch
from tfgc._step.trace import Trace
from tfgc._step.work import rows_of, tensor_bytes
from tfgc._units import check_budget


class TracePlans:
    """The plans of one trace, of which one is in use.

    Args:
        trace: The trace.
        request: What the user asks for.
        shapes: Of the tensors that a call gives it.
        may_correct: Whether real steps are measured, and the plan may change by that.
        fixed_bytes: Of variables that a step holds. Default: those that the trace reads or writes.
        step_plans: Those of its step, or of one like it.

    Attributes:
        watch: What real steps by the plans that were tried need.

    Raises:
        InfeasibleBudgetError: If the least plan is simulated to need more than the budget; where steps are measured,
            if by a factor that no allocator makes up for.
    """

    def __init__(
        self,
        trace: Trace,
        request: Request,
        shapes: Sequence[tf.TensorShape],
        may_correct: bool,
        fixed_bytes: int | None = None,
        step_plans: StepPlans | None = None,
    ) -> None:
        self.trace, self.request, self.rows = trace, request, rows_of(shapes)
        self.step_plans = step_plans or StepPlans(trace.step)
        given = given_to(trace)
        tensors = [t for t in given if t.dtype != tf.resource]
        self.inputs = tuple(f"{t.dtype.name}{list(t.shape)}" if t.shape.rank else t.dtype.name for t in tensors)
        if fixed_bytes is None:
            handles = [t for t in given if t.dtype == tf.resource]
            fixed_bytes = sum(map(private_api.held_bytes, (*handles, *trace.function.captured_inputs)))
        self.variable_bytes = fixed_bytes
        self._given_bytes = sum(tensor_bytes(t, self.rows) for t in tensors)
        self.held_bytes = self.variable_bytes + self._given_bytes
        self.plain_bytes = self.held_bytes + self.step_plans.plain_bytes
        self.budget_bytes: int | None = None
        if request.budget is not None:
            self.budget_bytes = budgets.budget_bytes(request.budget, lambda: self.plain_bytes, self.held_bytes)
        self._unseen: dict[int, int] = {}  # bytes by plan that TensorFlow does not count
        self.note, self._may_correct = "", may_correct  # what became of the plan that was given
        self._run_by(self._first())
        self._stays = request.plan is not None and not self.note
        self.is_open = request.budget is not None and any(t.shape.rank and None in t.shape.as_list() for t in tensors)
        if request.less is not None:
            with contextlib.suppress(PlanMismatchError):  # made for another model
                self.use(request.less)

    def use(self, plan: Plan) -> None:
        """Run by another plan of the step from now on, if it is one; `PlanMismatchError` if it is of another model."""
        cuts = described.cuts_of(plan, self.step_plans.step)
        if cuts is not None:
            self._run_by(self.step_plans.by_cuts(cuts, plan.strategy))
            self._stays = True

    def _run_by(self, plan: Rewritten) -> None:
        self.plan: Rewritten = plan
        self.watch = Watch(plan, self.variable_bytes, self._given_bytes, self.budget_bytes, self.request.ratio)

    @property
    def is_watched(self) -> bool:
        """Whether the next step is to be measured: all are within a budget, else those that show what a plan saves."""
        is_known = self.plan.unchanged or self.watch.steps == STEPS
        return self._may_correct and not (self.budget_bytes is None and is_known)

    def is_too_small(self, shapes: Sequence[tf.TensorShape]) -> bool:
        """Whether the plan was made for a smaller batch than this one."""
        return self.is_open and (rows_of(shapes) or 0) > (self.rows or 0)

    def larger(self, shapes: Sequence[tf.TensorShape]) -> "TracePlans":
        """Plans of the same trace for a larger batch."""
        request = dataclasses.replace(self.request, ratio=self.watch.ratio)
        return TracePlans(self.trace.counting(shapes), request, shapes, True)

    def described(self, made: Rewritten | None = None) -> Plan:
        """The plan in use, or another one of the step, as a `Plan` of its operations."""
        made = made or self.plan
        asked = self.request.strategy if made.unchanged else None
        name = made.strategy or (asked if isinstance(asked, str) else getattr(asked, "__name__", ""))
        name = name or ("optimal" if self.budget_bytes is None else "budget")
        options = self.request.options if name == self.request.strategy else {}
        plan = described.plan_of(made, name, options, self.held_bytes, self.budget_bytes, self.rows)
        return dataclasses.replace(plan, outlook=plan.outlook and plan.outlook.by_ratio(self.watch.ratio))

    @property
    def needed_bytes(self) -> int:
        """What the step is simulated to need by the plan in use."""
        return self.held_bytes + self.plan.peak_bytes

    def saw(self, made_bytes: int) -> bool:
        """Take in the peak of a step by the plan in use, without the variables; whether the plan changes.

        Raises:
            InfeasibleBudgetError: If it is the least plan, and three steps needed more than the budget.
        """
        self.watch.saw(made_bytes + self._unseen_bytes(self.plan))
        if self._stays:
            return False
        try:
            found = self.watch.next(self._within, self._least)
        except InfeasibleBudgetError:
            if check_budget(self.request.budget) is not None:  # a share of what was simulated, which no memory ends at
                return False
            with budgets.explained(self.request.budget):
                raise self._infeasible(self.plan, self.watch.least_bytes, "measured") from None
        if found is not None:
            self.watch.use(found)
            self.plan = found
        return found is not None

    def _unseen_bytes(self, plan: Rewritten) -> int:
        if id(plan) not in self._unseen:
            self._unseen[id(plan)] = unseen(plan.step)
        return self._unseen[id(plan)]

    def _first(self) -> Rewritten:
        if not self.trace.calls:
            return self.step_plans.plain("it asks for no gradient itself")
        if (given := self.request.plan) is not None:
            if (cuts := described.cuts_of(given, self.step_plans.step)) is not None:
                return self.step_plans.by_cuts(cuts, given.strategy)
            self.note = f"the plan is of another step of this model: planned again by {given.strategy!r}"
        strategy, options = self.request.strategy, self.request.options
        if self.budget_bytes is None:
            return self.step_plans.least() if strategy is None else self.step_plans.by(strategy, **options)
        # A share of what the plain step is simulated to need is compared with what others are simulated to need.
        added = self.step_plans.added if check_budget(self.request.budget) is None else 1.0
        ratio = self.request.ratio or added
        room = int((self.budget_bytes - self.variable_bytes) / ratio) - self._given_bytes
        with budgets.explained(self.request.budget):
            try:
                return self._within(room)
            except InfeasibleBudgetError:
                least = self._least()
                needed = self.held_bytes + least.peak_bytes
                if needed > (ADDED if self._may_correct else 1) * self.budget_bytes:
                    raise self._infeasible(least, needed, "simulated") from None
                return least

    def _within(self, room: int) -> Rewritten:
        strategy, layers = self.request.strategy, self.request.layers
        if layers is not None:
            plan = self.step_plans.among(self.trace.layer_spans(layers), room)
            if plan.peak_bytes > room:
                raise InfeasibleBudgetError(room, plan.peak_bytes, "the step")
            return plan
        is_named = not (callable(strategy) or self.request.options)  # whose values the strategy checks
        if strategy is None or room <= 0 or (is_named and self.step_plans.plain_bytes <= room):
            return self.step_plans.within(room)
        return self.step_plans.by(strategy, room, **self.request.options)

    def _least(self) -> Rewritten:
        layers = self.request.layers
        return self.step_plans.least() if layers is None else self.step_plans.among(self.trace.layer_spans(layers), 0)

    def _infeasible(self, least: Rewritten, needed: int, how: str) -> InfeasibleBudgetError:
        at = described.busiest(least.step)
        node = "the step" if at is None else least.step.ops[at.traced].name if at.segment else at.name
        also = f" ({how}; variables and arguments take {self.held_bytes:,} of them)"
        assert self.budget_bytes is not None
        return InfeasibleBudgetError(self.budget_bytes, needed, node, also)
