"""Which plan each trace of a `tfgc.function` runs by: chosen by simulation, corrected by what real steps need.

What a step needs is what it holds all the time (the variables that it uses, its arguments) plus the peak of what it
makes. The first plan leaves room for what an allocator adds. Then the peak of real steps is read: where it is above the
budget, or so far below that less recomputation fits, the next plan is chosen by the ratio of measured to simulated.
"""

import contextlib
from collections.abc import Sequence

import tensorflow as tf

from tfgc._core.plan import Plan
from tfgc._errors import InfeasibleBudgetError, PlanMismatchError
from tfgc._framework import private_api
from tfgc._planning import budgets, described
from tfgc._planning.function_peaks import unseen
from tfgc._planning.function_trace import given_to, rows_of
from tfgc._planning.request import Request
from tfgc._planning.step_plans import Rewritten, StepPlans
from tfgc._step.trace import Trace
from tfgc._step.work import tensor_bytes
from tfgc._units import check_budget

# What allocators add to a simulated peak, at most, before it was measured.
_ADDED = 1.3
# Calls of a plan by when it has been measured: the first one makes buffers of its own (constants, layouts of weights).
_MEASURED = 3
_MOST_PLANS = 4  # the first one and three corrections
# A step that needs so little of its budget may do with less recomputation.
_ROOMY = 0.9


class TracePlans:
    """The plans of one trace, of which one is in use.

    Args:
        trace: The trace.
        request: What the user asks for.
        shapes: Of the tensors that a call gives it.
        may_correct: Whether real steps will be measured.
        fixed_bytes: Of variables that a step holds. Default: those that the trace reads or writes.
        step_plans: Those of its step, or of one like it.

    Raises:
        InfeasibleBudgetError: If the least plan does not fit in the budget by its simulated peak.
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
        self.held_bytes = self.variable_bytes + sum(tensor_bytes(t, self.rows) for t in tensors)
        self.plain_bytes = self.held_bytes + self.step_plans.plain_bytes
        self.budget_bytes: int | None = None
        if request.budget is not None:
            self.budget_bytes = budgets.budget_bytes(request.budget, lambda: self.plain_bytes, self.held_bytes)
        self._tried: list[tuple[Rewritten, int]] = []  # with what the step was measured to need
        self._calls = self._most = 0
        self.note = ""  # what became of the plan that was given
        self.plan = self._first()
        self.is_settled = not may_correct or (self.budget_bytes is None and bool(self.plan.unchanged))
        self.is_open = request.budget is not None and any(t.shape.rank and None in t.shape.as_list() for t in tensors)
        if request.less is not None:
            with contextlib.suppress(PlanMismatchError):  # made for another model
                self.use(request.less)

    def use(self, plan: Plan) -> None:
        """Run by another plan of the step from now on, if it is one; `PlanMismatchError` if it is of another model."""
        cuts = described.cuts_of(plan, self.step_plans.step)
        if cuts is not None:
            self.plan, self.is_settled = self.step_plans.by_cuts(cuts, plan.strategy), True

    def is_too_small(self, shapes: Sequence[tf.TensorShape]) -> bool:
        """Whether the plan was made for a smaller batch than this one."""
        return self.is_open and (rows_of(shapes) or 0) > (self.rows or 0)

    def larger(self, shapes: Sequence[tf.TensorShape]) -> "TracePlans":
        """Plans of the same trace for a larger batch."""
        return TracePlans(self.trace.counting(rows_of(shapes), shapes), self.request, shapes, True)

    def described(self, made: Rewritten | None = None) -> Plan:
        """The plan in use, or another one of the step, as a `Plan` of its operations."""
        made = made or self.plan
        asked = self.request.strategy if made.unchanged else None
        name = made.strategy or (asked if isinstance(asked, str) else getattr(asked, "__name__", ""))
        name = name or ("optimal" if self.budget_bytes is None else "budget")
        options = self.request.options if name == self.request.strategy else {}
        return described.plan_of(made, name, options, self.held_bytes, self.budget_bytes, self.rows)

    @property
    def needed_bytes(self) -> int:
        """What the step is simulated to need by the plan in use."""
        return self.held_bytes + self.plan.peak_bytes

    @property
    def measured_bytes(self) -> int | None:
        """What the step was measured to need by the plan in use; None before."""
        return next((needed for plan, needed in reversed(self._tried) if plan is self.plan), None)

    def saw(self, made_bytes: int) -> bool:
        """Take in the peak of a call by the plan in use, without the variables; whether the plan changes."""
        self._calls += 1
        if self._calls > 1:
            self._most = max(self._most, made_bytes)
        if self._calls < _MEASURED:
            return False
        self._tried.append((self.plan, self.variable_bytes + self._most + unseen(self.plan.step)))
        found = self._next()
        self.is_settled = found is None or any(plan is found for plan, _ in self._tried)
        self.plan, self._calls, self._most = found or self.plan, 0, 0
        return found is not None

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
        room = self.budget_bytes - self.held_bytes
        # A share of what the plain step is simulated to need is compared with what others are simulated to need.
        is_share = check_budget(self.request.budget) is not None
        with budgets.explained(self.request.budget):
            try:
                return self._within(room if is_share else int(room / _ADDED))
            except InfeasibleBudgetError:
                if (least := self._least()).peak_bytes <= room:
                    return least
                raise self._infeasible(least) from None

    def _within(self, room: int) -> Rewritten:
        strategy, layers = self.request.strategy, self.request.layers
        if layers is not None:
            plan = self.step_plans.among(self.trace.layer_spans(layers), room)
            if plan.peak_bytes > room:
                raise InfeasibleBudgetError(room, plan.peak_bytes, "the step")
            return plan
        if strategy is None or room <= 0 or self.step_plans.plain_bytes <= room:
            return self.step_plans.within(room)
        return self.step_plans.by(strategy, room, **self.request.options)

    def _least(self) -> Rewritten:
        layers = self.request.layers
        return self.step_plans.least() if layers is None else self.step_plans.among(self.trace.layer_spans(layers), 0)

    def _infeasible(self, least: Rewritten) -> InfeasibleBudgetError:
        at = described.busiest(least.step)
        node = "the step" if at is None else least.step.ops[at.traced].name if at.segment else at.name
        also = f" (simulated; variables and arguments take {self.held_bytes:,} of them)"
        assert self.budget_bytes is not None
        return InfeasibleBudgetError(self.budget_bytes, self.held_bytes + least.peak_bytes, node, also)

    def _next(self) -> Rewritten | None:
        """The plan that is better by what was measured, or None."""
        budget, (plan, needed), tried = self.budget_bytes, self._tried[-1], len(self._tried)
        is_given = self.request.plan is not None and not self.note
        if budget is None or is_given or not plan.peak_bytes or tried == _MOST_PLANS:
            return None
        is_held, held = needed <= budget, sum(needs <= budget for _, needs in self._tried)
        # There is nothing to gain, or little, or more was tried and did not hold, or might not be taken back.
        if is_held and (plan.unchanged or needed > _ROOMY * budget or held < tried or tried == _MOST_PLANS - 1):
            return None
        if not is_held and held:
            return self._best()
        # Below one, something is left out of the count.
        ratio = max(1.0, (needed - self.held_bytes) / plan.peak_bytes)
        try:
            found = self._within(int((budget - self.held_bytes) / ratio))
        except InfeasibleBudgetError:
            found = self._least()
        is_new = all(found.cuts != each.cuts or found.unchanged != each.unchanged for each, _ in self._tried)
        is_better = found.overhead < plan.overhead if is_held else found.peak_bytes < plan.peak_bytes
        return found if is_new and is_better else self._best()

    def _best(self) -> Rewritten | None:
        """Of the plans that were tried, that of least work which held, or of least need; None if it is in use."""
        assert self.budget_bytes is not None
        most = self.budget_bytes
        best, _ = min(self._tried, key=lambda each: (max(0, each[1] - most), each[0].overhead))
        return None if best is self.plan else best
