"""Eager calls of a model, measured from the start of forward to the end of backward, and planned anew by that."""

import dataclasses
import sys
from collections.abc import Callable
from typing import Any

from tfgc._errors import TfgcError
from tfgc._pairs.segments import Planned
from tfgc._planning.function_peaks import Peak
from tfgc._planning.promised import PlannedStep, planned_step
from tfgc._planning.trace_plans import TracePlans


@dataclasses.dataclass(eq=False)
class PlannedCall:
    """What was planned for a kind of call of the model of this name; the plan may change."""

    step: PlannedStep
    plans: TracePlans
    name: str
    verbose: bool | None
    is_reported: bool = False
    weights: int = 0  # that the model had
    sizes: tuple = ()  # of what it was planned for

    @property
    def measured(self) -> PlannedStep:
        """The step with what it was measured to need."""
        return self.step.measured(self.plans.watch)

    @property
    def runs(self) -> Planned:
        """What runs it by its plan."""
        return Planned(self.plans.plan.step, self)

    def begun(self, given: Any) -> Callable[[], Any] | None:
        """Measure a call with these arguments from here on; None if it is not to be measured.

        Returns:
            What ends that: it gives what plans the calls that follow if the plan changes, else None.
        """
        plans = self.plans
        if not plans.is_watched:
            return None
        try:
            peak = Peak(given)
        except TfgcError:  # TensorFlow does not count
            return None
        plan = plans.plan

        def ended() -> Any:
            made_bytes = peak.close()
            # Another call may have changed the plan meanwhile.
            if plans.plan is not plan or not plans.saw(made_bytes):
                return None
            if self.verbose:
                print(f"tfgc: {self.name!r}: {plans.watch.change}", file=sys.stderr, flush=True)
            step = planned_step(plans, self.step.seconds, self.step.shapes)
            return lambda *_: dataclasses.replace(self, step=step, is_reported=True).runs

        return ended
