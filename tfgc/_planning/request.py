"""What a training step is to be planned by."""

import dataclasses
from collections.abc import Iterable
from typing import Any

import keras

from tfgc import strategies
from tfgc._core.plan import Plan
from tfgc._planning.budgets import Budget
from tfgc.strategies import Strategy


@dataclasses.dataclass(frozen=True)
class Request:
    """What a step is to be planned by.

    `layers` are those to choose among, None: operations. Under XLA, so many `candidates` are compiled.
    """

    strategy: Strategy | None = None
    budget: Budget | None = None
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    layers: tuple[keras.Layer, ...] | None = None
    plan: Plan | None = None  # of the operations of a step
    less: Plan | None = None  # the same, for steps like one that ran out of memory
    ratio: float | None = None  # measured by simulated bytes, without variables, of a step of the model
    candidates: int = 3

    @property
    def chosen(self) -> Strategy:
        """The strategy, or what chooses where none is named."""
        return self.strategy or ("optimal" if self.budget is None else "budget")

    @property
    def says_how(self) -> bool:
        """Whether a budget, a strategy or a plan says how the step is to be planned."""
        return any(one is not None for one in (self.budget, self.strategy, self.plan))

    def after(self, ratios: Iterable[float | None]) -> "Request":
        """The same once steps of the model were measured, with these ratios; the first one is taken."""
        return dataclasses.replace(self, ratio=next(filter(None, ratios), self.ratio))

    @classmethod
    def of(cls, plan: Plan) -> "Request":
        """To run by a plan of the operations of a step, and what is not such a step by what chose it."""
        budget, ratio = plan.outlook and plan.outlook.budget_bytes, plan.outlook and plan.outlook.ratio
        if plan.strategy not in strategies.available() or (plan.strategy in ("budget", "optimal") and not plan.options):
            return cls(None, budget, plan=plan, ratio=ratio)
        return cls(plan.strategy, budget, dict(plan.options), plan=plan, ratio=ratio)
