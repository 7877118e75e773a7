"""What a training step is to be planned by."""

import dataclasses
from typing import Any

import keras

from tfgc import strategies
from tfgc._core.plan import Plan
from tfgc._planning.budgets import Budget
from tfgc.strategies import Strategy


@dataclasses.dataclass(frozen=True)
class Request:
    """What a step is to be planned by; `layers` are those to choose among, None: operations."""

    strategy: Strategy | None = None
    budget: Budget | None = None
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    layers: tuple[keras.Layer, ...] | None = None
    plan: Plan | None = None  # of the operations of a step
    less: Plan | None = None  # the same, for steps like one that ran out of memory

    @property
    def says_how(self) -> bool:
        """Whether a budget, a strategy or a plan says how the step is to be planned."""
        return any(one is not None for one in (self.budget, self.strategy, self.plan))

    @classmethod
    def of(cls, plan: Plan) -> "Request":
        """To run by a plan of the operations of a step, and what is not such a step by what chose it."""
        budget = plan.outlook and plan.outlook.budget_bytes
        if plan.strategy not in strategies.available() or (plan.strategy in ("budget", "optimal") and not plan.options):
            return cls(None, budget, plan=plan)
        return cls(plan.strategy, budget, dict(plan.options), plan=plan)
