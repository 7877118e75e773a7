"""When a step runs out of memory: an error that explains it, or the step again by a plan that needs less."""

import contextlib
import dataclasses
import gc
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tfgc._core.ignored_warnings import ignored_warnings
from tfgc._core.plan import Plan
from tfgc._core.segments import Outlook
from tfgc._errors import InfeasibleBudgetError, OptionError, OutOfMemoryWarning, TfgcError, did_you_mean, warn
from tfgc._planning import budgets, free_memory
from tfgc._planning.trace_plans import TracePlans
from tfgc._training.atomic_step import AtomicStep
from tfgc._units import PERCENT, format_bytes

# The most that the next budget is of what the plan that failed should have needed.
_SHARE = 0.8


def check_on_oom(on_oom: str | None) -> None:
    """Raise for a value of `on_oom` that there is not."""
    if on_oom not in (None, "replan", "raise"):
        hint = did_you_mean(on_oom, ["replan", "raise"])
        raise OptionError(f"on_oom={on_oom!r}: must be None, 'replan' or 'raise'{hint}")


@dataclasses.dataclass(frozen=True)
class StepByPlan:
    """A step as its plan sees it, and what makes and predicts plans for its batch."""

    model: keras.Model
    plan: Plan
    optimizer: keras.Optimizer | None
    plans: Callable[[], Any]  # of its step

    @property
    def fixed(self) -> int:
        """Bytes of weights and optimizer slots."""
        return budgets.fixed_bytes(self.model, self.optimizer)

    def needed_bytes(self) -> int:
        """What the plan predicts for the step."""
        return self.plans().estimate(self.plan).needed_bytes

    def within(self, budget: int) -> "StepByPlan":
        """The step by a plan of the same kind that fits in a budget, or else needs least."""
        plans = self.plans()
        try:
            plan = plans.fitting(budget)
        except InfeasibleBudgetError:
            plan = plans.least()
        return dataclasses.replace(self, plan=plans.with_figures(plan))


def step_as_a_whole(model: keras.Model, optimizer: keras.Optimizer | None, plans: TracePlans) -> StepByPlan:
    """A step that was traced as a whole."""
    return StepByPlan(model, plans.described(), optimizer, lambda: _WholeSteps(plans))


class _WholeSteps:
    """Plans of a step that was traced as a whole."""

    def __init__(self, plans: TracePlans) -> None:
        self._plans = plans

    def estimate(self, plan: Plan) -> Outlook:
        """What a plan needs."""
        assert plan.outlook is not None
        return plan.outlook

    def fitting(self, budget: int) -> Plan:
        """The plan of least work within a budget; `InfeasibleBudgetError` if there is none."""
        return self._plans.described(self._plans.step_plans.within(budget - self._plans.held_bytes))

    def least(self) -> Plan:
        """The plan of least peak."""
        return self._plans.described(self._plans.step_plans.least())

    def with_figures(self, plan: Plan) -> Plan:
        """The plan, which has its figures."""
        return plan


class Diagnosis(NamedTuple):
    """What a step that ran out of memory should have needed, and the step by a plan that needs less, if any."""

    text: str
    less: StepByPlan | None = None
    less_bytes: int = 0


def diagnose(step: StepByPlan) -> Diagnosis:
    """Find out why a step ran out of memory, once all that it made is freed."""
    free, fixed = None, step.fixed
    with contextlib.suppress(OptionError):  # A GPU that does not tell its limit.
        free = free_memory.free_bytes()
    place = "GPU:0" if tf.config.list_physical_devices("GPU") else "the CPU"
    found = "" if free is None else f"; {place} had {format_bytes(free + fixed)} for it"
    plan = f"its plan ({step.plan.strategy})"
    try:
        with ignored_warnings():  # They were given when the plan was made.
            needed = step.needed_bytes()
            budget = int(needed * _SHARE)
            if free is not None:
                budget = min(budget, int(free * (1 - budgets.MARGIN)) + fixed)
            less = step.within(budget)
            less_bytes = less.needed_bytes()
            if less_bytes >= needed:  # Budgets are kept in graphs; what a step in Python needs may differ.
                less = step.within(PERCENT + 1)
                less_bytes = less.needed_bytes()
    except TfgcError as error:
        return Diagnosis(
            f"what {plan} needs cannot be predicted ({error}){found}. Make a plan for this batch and a budget"
        )
    text = f"{plan} is predicted to need {format_bytes(needed)}{found}"
    if less_bytes >= needed:
        return Diagnosis(f"{text}. No plan for this batch needs less: use a smaller batch or input")
    return Diagnosis(f"{text}. Try budget={max(budget, less_bytes):_}", less, less_bytes)


class GuardedStep:
    """A step that explains the error when it runs out of memory, or runs again by a plan that needs less."""

    mode: str  # "graph", "xla", or "compiled" in Python
    attempt: Callable[..., Any]  # runs the step
    planned: Callable[..., StepByPlan | None]  # the step as its plan sees it; None if it has no plan
    can_be_taken_back: Callable[..., bool]  # whether `on_oom="replan"` is possible here, so that it can be offered
    replace: Callable[..., None]  # lets the next attempt run by another plan, which is predicted to need so many bytes

    def __init__(self, what: str, atomic: AtomicStep | None) -> None:
        self.what = what  # names it in messages
        self.atomic = atomic  # takes it back; None if it is not to be run again

    def guarded(self, *args: Any) -> Any:
        """Run the step; an error of memory has the explanation, and that the step is run again is warned of."""
        while True:
            if self.atomic is not None:
                self.atomic.begin()
            try:
                made = self.attempt(*args)
                if self.atomic is not None:
                    self.atomic.end()
                return made
            except tf.errors.ResourceExhaustedError as error:
                failed = error
            traceback.clear_frames(failed.__traceback__)  # They hold the activations of an eager step.
            gc.collect()
            obstacle = None if self.atomic is None else self.atomic.take_back()
            step = self.planned(*args)
            if step is None:
                raise failed
            found = diagnose(step)
            text = f"{self.what} ran out of memory: {found.text}"
            if self.atomic is not None and obstacle is None and found.less is not None:
                warn(
                    f"{text}. The step runs again by a plan that is predicted to need {format_bytes(found.less_bytes)}",
                    OutOfMemoryWarning,
                )
                self.replace(found.less.plan, found.less_bytes)
                continue
            if obstacle is not None:
                text += f". {obstacle}"
            elif self.atomic is None:
                text += ", or on_oom='replan'" if found.less is not None and self.can_be_taken_back() else ""
                if self.mode == "xla":
                    text += ". TensorFlow may have lost the variables that the step writes: load them in a new process"
            message = f"{text}. TensorFlow said: {_said(failed)}"
            raise tf.errors.ResourceExhaustedError(failed.node_def, failed.op, message) from failed


def _said(error: tf.errors.ResourceExhaustedError) -> str:
    """What TensorFlow could not allocate; its message goes on with places in graphs."""
    lines = [line.strip() for line in str(error.message).splitlines() if line.strip()]
    return next((line[line.index("OOM") :] for line in lines if "OOM" in line), lines[0] if lines else "")
