"""What was planned for a call or a step of a model, and what it promises there."""

import dataclasses
from collections.abc import Callable, Iterable
from typing import TypeVar

from tfgc._core.plan import Plan
from tfgc._errors import InfeasibleBudgetError
from tfgc._planning.batch_specs import Shapes
from tfgc._planning.request import Request
from tfgc._planning.trace_plans import TracePlans
from tfgc._planning.watch import Watch
from tfgc._units import check_budget, format_bytes

Planned = TypeVar("Planned")


@dataclasses.dataclass(frozen=True)
class PlannedStep:
    """A plan for one call, and what it promises there, as `tfgc.PlanStatus` says it.

    `shapes` are those of what the model was given.
    """

    plan: Plan
    mode: str
    batch_size: int | None
    predicted_bytes: int | None
    plain_bytes: int | None
    overhead: float | None
    seconds: float
    unchanged: str | None = None
    shapes: Shapes = ()
    measured_bytes: int | None = None  # what a step was measured to need
    changes: int = 0  # of the plan, by what steps were measured to need
    is_asked_for: bool = False  # whether a budget or a strategy says how a step is planned that is planned as a whole

    def measured(self, watch: Watch) -> "PlannedStep":
        """The step with what it was measured to need."""
        plan = dataclasses.replace(self.plan, outlook=self.plan.outlook and self.plan.outlook.by_ratio(watch.ratio))
        return dataclasses.replace(self, plan=plan, measured_bytes=watch.needed_bytes)

    def by(self, plan: Plan, predicted_bytes: int) -> "PlannedStep":
        """The step by another plan."""
        overhead = None if plan.outlook is None else plan.outlook.overhead
        return dataclasses.replace(self, plan=plan, predicted_bytes=predicted_bytes, overhead=overhead)


def in_share(
    plan: Callable[[Request], Planned], request: Request, earlier: Iterable[PlannedStep], shapes: Shapes
) -> Planned:
    """Call `plan`; where a share of the plain step is too little, with that of an earlier step on such inputs.

    What is frozen while a model trains makes its plain step smaller, and so a share of it.
    """
    try:
        return plan(request)
    except InfeasibleBudgetError:
        share = None if request.budget is None else check_budget(request.budget)
        before = [step.plain_bytes for step in earlier if step.shapes == shapes and step.plain_bytes]
        if share is None or not before:
            raise
        return plan(dataclasses.replace(request, budget=int(share * max(before))))


def planned_step(plans: TracePlans, seconds: float, shapes: Shapes) -> PlannedStep:
    """What a step promises by the plan in use."""
    made = plans.plan
    return PlannedStep(
        plans.described(), "graph", plans.rows, plans.needed_bytes, plans.plain_bytes, made.overhead, seconds,
        _why_unchanged(plans), shapes=shapes, changes=plans.watch.changes,
        is_asked_for=plans.request.says_how,
    )  # fmt: skip


def _why_unchanged(plans: TracePlans) -> str | None:
    """Why the step runs as it is, and what would help, unless a budget or strategy says how; None if it does not."""
    if not plans.plan.unchanged or plans.request.says_how:
        return plans.plan.unchanged or None
    held, whole = plans.variable_bytes, plans.plain_bytes
    if 2 * held > whole:
        return (
            f"weights and optimizer slots are {format_bytes(held)} of {format_bytes(whole)}, which no plan reduces. A "
            "larger batch, mixed precision or an optimizer with fewer slots shifts that"
        )
    return f"{plans.plan.unchanged}. A larger batch makes activations a larger part of it"
