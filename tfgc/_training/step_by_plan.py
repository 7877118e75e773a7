"""A training step as its plan sees it: what it needs, and the same step by a plan that needs less."""

import dataclasses
from collections.abc import Callable
from typing import Any

import keras

from tfgc._calls.call_plans import CallPlans
from tfgc._core.plan import Plan
from tfgc._errors import InfeasibleBudgetError
from tfgc._planning import budgets, estimates, planner


@dataclasses.dataclass(frozen=True)
class StepByPlan:
    """A step as its plan sees it.

    Attributes:
        model: The model that runs by the plan.
        plan: The plan.
        example: A batch of inputs, or None if that is not known.
        optimizer: What updates the model.
        loss: The loss, as in `compile`.
        mode: "graph", "xla", or "compiled" for a step that runs in Python.
    """

    model: keras.Model
    plan: Plan
    example: Any
    optimizer: keras.Optimizer | None
    loss: Any
    mode: str

    def needed_bytes(self) -> int:
        """What the plan predicts for the step."""
        return estimates.estimate(self.model, plan=self.plan, mode=self.mode, **self._known()).needed_bytes

    def within(self, budget: int) -> "StepByPlan":
        """The step by a plan of the same kind that fits in a budget, or else needs least."""
        known = {"strategy": "budget", "mode": self.mode, **self._known()}
        try:
            plan = planner.plan(self.model, budget=budget, **known)
        except InfeasibleBudgetError as error:
            plan = planner.plan(self.model, budget=error.least, **known)
        return dataclasses.replace(self, plan=plan)

    def _known(self) -> dict[str, Any]:
        loss = self.loss if isinstance(self.loss, str | keras.losses.Loss) else None
        batch = self.plan.batch_size if self.example is None else None
        return {"optimizer": self.optimizer, "loss": loss, "example": self.example, "batch_size": batch}


@dataclasses.dataclass(frozen=True)
class StepByCalls(StepByPlan):
    """A step as a plan by calls sees it, or one by segments for a functional model's own `train_step`.

    Attributes:
        plans: Gives the plans for the batch.
    """

    plans: Callable[[], CallPlans]

    def needed_bytes(self) -> int:
        return self.plans().estimate(self.plan, budgets.fixed_bytes(self.model, self.optimizer)).needed_bytes

    def within(self, budget: int) -> StepByPlan:
        try:
            plan = self.plans().fitting(budget, budgets.fixed_bytes(self.model, self.optimizer))
        except InfeasibleBudgetError:
            plan = self.plans().least()
        return dataclasses.replace(self, plan=plan)
