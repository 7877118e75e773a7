"""The step that a plan is asked for: what it is predicted to need, and what it needs when it is run or compiled.

The plan of a budget is chosen by that as in training (`_planning.watch`).
"""

import dataclasses
from typing import Any, NamedTuple

import keras

from tfgc._compiled import memory
from tfgc._core.confirmation import Confirmation
from tfgc._core.plan import Plan
from tfgc._errors import InfeasibleBudgetError, OptionError, TfgcError
from tfgc._measure import compare, examples, shipped
from tfgc._planning import batch_specs, estimates, planner, stand_in
from tfgc._planning.budgets import Budget
from tfgc._planning.watch import ADDED, STEPS, Watch
from tfgc._progress import SILENT, Progress
from tfgc._records.job import Case
from tfgc._simulate.simulator import Prediction
from tfgc._units import format_bytes


@dataclasses.dataclass(frozen=True)
class MeasuredStep:
    """What `tfgc.plan` is asked for, but the budget; `common` are the arguments that `tfgc.estimate` takes as well."""

    model: keras.Model
    batch_size: int | None
    common: dict[str, Any]
    options: dict[str, Any]
    confirm: Any

    @property
    def target(self) -> str | None:
        """The GPU that plans are compiled for; None where they are run."""
        return self.confirm if isinstance(self.confirm, str) else None

    def plain_bytes(self) -> int:
        """What the plain step needs: compiled for a GPU where one is named, else as predicted."""
        plain = self.predict(None)
        return plain.needed_bytes if self.target is None else self.measure(None, plain)

    def plan(self, budget: Budget | None, ratio: float | None = None) -> Plan:
        """The plan of a budget, by predictions and the ratio of measured to predicted bytes."""
        return planner.plan(self.model, self.batch_size, budget=budget, ratio=ratio, **self.common, **self.options)

    def predict(self, plan: Plan | None) -> Prediction:
        """What the step needs by a plan, or if nothing is recomputed."""
        return estimates.estimate(self.model, self.batch_size, plan, **self.common)

    def measure(self, plan: Plan | None, step: Prediction, progress: Progress = SILENT) -> int:
        """What the step by a plan needs at most when it is run or compiled; `step` is what is predicted."""
        progress.start(f"{self.model.name}: a plan that should need {format_bytes(step.needed_bytes)}")
        if self.target is not None:
            needed = step.fixed_bytes + self._compiled(plan)
        else:
            assert plan is not None
            needed = step.fixed_bytes + self._run(plan)
        progress.done(f"needs {format_bytes(needed)}")
        return needed

    def _batch(self, batch_size: int) -> Any:
        shapes, example, loss = (self.common[name] for name in ("input_shapes", "example", "loss"))
        return stand_in.batch(self.model, batch_size, shapes, example, loss)

    def _compiled(self, plan: Plan | None) -> int:
        batch_size = self.batch_size or batch_specs.batch_size(self.common["example"])
        if batch_size is None:
            raise OptionError(f"confirm={self.confirm!r}: give a batch_size, since a step of one batch is compiled")
        return memory.compiled_memory(
            self.model, batch_size, plan, target=self.confirm, example=self._batch(batch_size),
            loss=self.common["loss"], optimizer=self.common["optimizer"],
        ).temp_bytes  # fmt: skip

    def _run(self, plan: Plan) -> int:
        """The most that one of five steps in a child process needs on top of what stays between them."""
        model, label = self.model, shipped.label(self.confirm)
        if plan.batch_size is None:
            raise OptionError(f"{label}: give a batch_size, since a step of one batch is measured")
        mode, optimizer, loss = (self.common[name] for name in ("mode", "optimizer", "loss"))
        build = shipped.shipped(model, self.confirm, optimizer, loss)
        example = examples.portable(self._batch(plan.batch_size))
        case = Case(model.name, (build, None), "confirm", mode, plan.batch_size, plan=plan.to_json(), example=example)
        record = compare.run(case)
        if record.peak_bytes_max is None:
            raise TfgcError(
                f"{label}: a step of {model.name!r} cannot be run in a child process: {record.status}, "
                f"{record.detail.rstrip('.')}"
                f"{shipped.advice(self.confirm, '. If it cannot be built there, ')}"
            )
        return record.peak_bytes_max


class _Tried(NamedTuple):
    """A plan, and what its step is predicted to need."""

    plan: Plan
    step: Prediction

    @property
    def peak_bytes(self) -> int:
        return self.step.needed_bytes - self.step.fixed_bytes

    @property
    def overhead(self) -> float:
        return self.step.overhead

    @property
    def unchanged(self) -> bool:
        return not self.step.overhead


def within_budget(asked: MeasuredStep, total: int, runs: Progress) -> tuple[Plan, Confirmation, float | None]:
    """The plan of least work that was measured to need no more than a budget, what was measured, and its ratio.

    Raises:
        InfeasibleBudgetError: If the plan that should need least was measured to need more.
    """

    def tried(limit: int, ratio: float | None = 1.0) -> _Tried:
        plan = asked.plan(f"{max(limit, 1)}B", ratio)
        return _Tried(plan, asked.predict(plan))

    def least() -> _Tried:
        try:
            return tried(1)
        except InfeasibleBudgetError as error:
            return tried(error.least)

    try:
        now = tried(total, None)
    except InfeasibleBudgetError as error:
        if error.least > ADDED * total:
            raise
        now = tried(error.least)
    fixed, known = now.step.fixed_bytes, dict[str, int]()
    watch = Watch(now, fixed, 0, total, None)
    while True:
        text = now.plan.to_json()
        known[text] = known.get(text) or asked.measure(now.plan, now.step, runs)
        for _ in range(STEPS):  # which that has run
            watch.saw(known[text] - fixed)
        try:
            other = watch.next(lambda room: tried(room + fixed), least)
        except InfeasibleBudgetError:
            raise InfeasibleBudgetError(total, watch.least_bytes, now.step.node, " as measured") from None
        if other is None:
            break
        watch.use(now := other)
    if watch.is_over:
        raise InfeasibleBudgetError(total, watch.least_bytes, now.step.node, " as measured")
    needed = known[now.plan.to_json()]
    return now.plan, Confirmation(needed, now.step.needed_bytes, total, len(known), asked.target), watch.ratio
