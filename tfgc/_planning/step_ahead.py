"""The plans of a training step that is traced ahead.

The step holds variables and its arguments all the time; what it makes is simulated.
"""

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from typing import Any

from tfgc._core.plan import Plan
from tfgc._errors import PlanMismatchError
from tfgc._planning import budgets, compiled_plans, described, function_trace
from tfgc._planning.among_layers import Spans
from tfgc._planning.budgets import Budget
from tfgc._planning.request import Request
from tfgc._planning.step_plans import Rewritten, StepPlans
from tfgc._planning.trace_plans import TracePlans
from tfgc._rewrite.liveness import timeline
from tfgc._rewrite.on_host import host_bytes
from tfgc._simulate.simulator import Prediction
from tfgc._step.step import FROM_HOST, TO_HOST
from tfgc._step.trace import Trace
from tfgc._step.work import rows_of, tensor_bytes
from tfgc._units import is_auto

# Rooms between the least peak and the plain step's for which the front has plans.
_ROOMS = 6


class StepAhead:
    """The plans of one trace.

    Args:
        model: The model that it trains.
        trace: Of its training step.
        fixed_bytes: Of weights and optimizer slots.
        mode: "xla" where XLA compiles it, which then says what plans need.
    """

    def __init__(self, model: Any, trace: Trace, fixed_bytes: int, mode: str = "graph") -> None:
        self.model, self._trace, self._step, self.fixed_bytes = model, trace, trace.step, fixed_bytes
        given = function_trace.given_to(trace)
        self._shapes = [tensor.shape for tensor in given]
        self._plans = StepPlans(trace.step)
        if mode == "xla":
            self._plans = compiled_plans.plans_for(trace, self._shapes, Request(), model.name, shown=False)
        self.batch_size = rows_of(self._shapes)
        self.input_bytes = sum(tensor_bytes(tensor, self.batch_size) for tensor in given)

    @property
    def held_bytes(self) -> int:
        """What a step holds all the time: weights, slots and its batch."""
        return self.fixed_bytes + self.input_bytes

    @property
    def plain_bytes(self) -> int:
        """What the plain step needs."""
        return self.held_bytes + self._plans.plain_bytes

    def asked(self, request: Request) -> Plan:
        """The plan that a step is trained by which a request asks for."""
        return self._first(request).described()

    def _first(self, request: Request) -> TracePlans:
        if is_auto(request.budget):  # slots that are not made yet have to fit as well
            total = budgets.budget_bytes("auto", None, budgets.resident_bytes(self.model))
            request = dataclasses.replace(request, budget=total)
        return TracePlans(self._trace, request, self._shapes, False, self.fixed_bytes, self._plans)

    def least(self) -> Plan:
        """The plan of least peak."""
        return self._described(self._plans.least(), "optimal")

    def fitting(self, budget: Budget) -> Plan:
        """The plan for a budget; `InfeasibleBudgetError` if there is none."""
        return self._described(self._first(Request(budget=budget)).plan, "budget")

    def front(self) -> list[Plan]:
        """Plans from the least peak to the plain step, each with less work than the one before."""
        least, plain = self._plans.least(), self._plans.plain("nothing is recomputed")
        gap = (plain.peak_bytes - least.peak_bytes) // (_ROOMS + 1)
        rooms = [least.peak_bytes + gap * i for i in range(1, _ROOMS + 1)] if gap else []
        found = [least, *map(self._plans.within, rooms), plain]
        found.sort(key=lambda made: (made.overhead, made.peak_bytes))
        lowest = itertools.accumulate((made.peak_bytes for made in found), min, initial=plain.peak_bytes + 1)
        front = [made for made, before in zip(found, lowest) if made.peak_bytes < before]
        return [self._described(made, "optimal" if made is front[-1] else "budget") for made in reversed(front)]

    def with_figures(self, plan: Plan) -> Plan:
        """A plan of this step with its figures for this batch; `PlanMismatchError` if it is of another one."""
        figures = self._described(self._by(plan), plan.strategy, plan.options)
        budget = plan.outlook and plan.outlook.budget_bytes
        outlook = figures.outlook and dataclasses.replace(figures.outlook, budget_bytes=budget)
        return dataclasses.replace(figures, outlook=outlook)

    def check(self, plan: Plan) -> None:
        """Raise `PlanMismatchError` unless this is a plan of the step."""
        self._cuts(plan)

    def places(self, plan: Plan, layers: Sequence[Any]) -> tuple[list[int], Sequence[Spans]]:
        """Behind which operations a plan of this step cuts it, and where those of each layer's calls begin and end."""
        return [cut.behind for cut in self._cuts(plan)], self._trace.layer_spans(layers)

    @functools.cached_property
    def floor(self) -> tuple[int, str]:
        """The bytes that one operation reads and makes, which no plan gets below, and that operation."""
        step = self._step

        def bytes_of(number: int) -> int:
            return sum(map(step.size, {*step.makes[number], *step.reads[number]}))

        largest = max(step.order, key=bytes_of)
        return bytes_of(largest), step.ops[largest].name

    def estimate(self, plan: Plan | None) -> Prediction:
        """What the step needs by a plan, or if nothing is recomputed."""
        made = self._plans.plain("") if plan is None else self._by(plan)
        step, held = made.step, self.held_bytes
        alive = timeline(step)
        ops = [step.ops[number] for number in step.order]
        done = itertools.accumulate(op.work for op in ops)
        names = [step.ops[op.traced].name if op.segment else op.name for op in ops]
        at = max(range(len(alive)), key=alive.__getitem__, default=0)
        plain = sum(op.work for op in self._step.ops.values())
        again = {step.ops[op.traced].name for op in ops if op.segment and op.type != FROM_HOST}
        return Prediction(
            peak_bytes=held + alive[at],
            activation_bytes=alive[at],
            node=names[at],
            phase=described.phase(ops[at]),
            work=float(plain + sum(op.work for op in ops if op.segment)),
            plain_work=float(plain),
            runs={
                op.name: 1 + (op.name in again)
                for op in ops
                if not (op.segment or op.is_gradient or op.type == TO_HOST)
            },
            timeline=tuple((float(w), n, name) for w, n, name in zip(done, alive, names)),
            fixed_bytes=self.fixed_bytes,
            host_bytes=host_bytes(step),
        )

    def _by(self, plan: Plan) -> Rewritten:
        return self._plans.by_cuts(self._cuts(plan), plan.strategy)

    def _cuts(self, plan: Plan) -> list:
        cuts = described.cuts_of(plan, self._step)
        if cuts is None:
            raise PlanMismatchError(
                f"this plan (strategy {plan.strategy!r}) is of another step of {self.model.name!r}: make one for this "
                "batch, loss and optimizer with tfgc.plan"
            )
        return cuts

    def _described(self, made: Rewritten, name: str, options: dict[str, Any] | None = None) -> Plan:
        return described.plan_of(made, made.strategy or name, options or {}, self.held_bytes, None, self.batch_size)
