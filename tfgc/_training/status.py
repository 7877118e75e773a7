"""What is on in a model, and what it promised: `tfgc.status`."""

import dataclasses
from typing import Any

import keras

from tfgc._core.plan import Plan
from tfgc._core.shown import Brief, Shown, limited
from tfgc._framework import keras_models, model_checks
from tfgc._planning.promised import PlannedStep
from tfgc._tracing import functional_graphs
from tfgc._training import peak_memory, plan_report, stale_traces
from tfgc._training.layer_calls import LayerCall
from tfgc._training.planned_calls import PlannedCalls
from tfgc._training.stand_ins import stand_in
from tfgc._units import format_measured


@dataclasses.dataclass(frozen=True, repr=False)
class PlanStatus(Brief):
    """A plan that a model runs by.

    Attributes:
        plan: The plan; None for a layer that was chosen by `layers=`.
        part: The path of the model or layer in the model that was asked about; "" is the model itself.
        mode: The mode of the calls that it is for, as in `tfgc.estimate` and `tfgc.verify`; None: any.
        sizes: For each input its shape without the batch, and its dtype; None: any.
        batch_size: Samples in the batch that it was made for, or None.
        predicted_bytes: What the whole step needs, as a budget is compared with it; None if unknown.
        plain_bytes: The same if nothing is recomputed.
        overhead: Work on top of the plain step's, as a fraction of it; None if unknown.
        planning_seconds: How long planning took at the first call; None for a plan that was given.
        unchanged: Why nothing is recomputed, or None.
        measured_bytes: What a step was measured to need most by this plan, or None.
        changes: How often the plan was changed by what steps were measured to need.
    """

    plan: Plan | None
    part: str = ""
    mode: str | None = None
    sizes: tuple[tuple[tuple[int | None, ...], str], ...] | None = None
    batch_size: int | None = None
    predicted_bytes: int | None = None
    plain_bytes: int | None = None
    overhead: float | None = None
    planning_seconds: float | None = None
    unchanged: str | None = None
    measured_bytes: int | None = None
    changes: int = 0

    def __str__(self) -> str:
        name = f"{self.part}: " if self.part else ""
        if self.plan is None:
            return f"{name}recomputed as one segment" if self.unchanged is None else f"{name}kept: {self.unchanged}"
        where = "" if self.mode is None else f", {self.mode}"
        inputs = "" if self.sizes is None else ", inputs " + " ".join(f"{dtype}{list(s)}" for s, dtype in self.sizes)
        promise = plan_report.promise(self.plan, self.predicted_bytes, self.plain_bytes)
        if self.measured_bytes is not None:
            budget = self.plan.outlook and self.plan.outlook.budget_bytes
            words = plan_report.measured(self) if budget is None else format_measured(self.measured_bytes, None, budget)
            promise = f"{words}, simulated: {promise}" if budget else f"{promise} (simulated), {words}"
        if self.unchanged is not None:
            promise += f", trains as before: {self.unchanged}"
        return f"{name}by {self.plan.strategy!r}{where}{inputs}, {promise}"


@dataclasses.dataclass(frozen=True, repr=False)
class Status(Shown):
    """What tfgc does in a model.

    Attributes:
        model: The name of the model.
        enabled: Whether the model, or a part of it, is enabled.
        plans: What it runs by, the one that was used last at the end; empty until the first training call of a model
            that was enabled without a plan. Parts of the model that are enabled by themselves follow.
        measured_bytes: The most bytes that a step needed when the model last trained with `tfgc.PeakMemory`, or None.
        measured: The same in words: of how much, and by how much a budget or a prediction was missed.
        notes: Why the model, or a part of it, has no plan.

    Example:
        >>> import keras, tfgc
        >>> model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8)], name="net")
        >>> print(tfgc.status(model))
        net: not enabled
        >>> print(tfgc.status(tfgc.enable(model)))
        net: enabled, to be planned at its first training call
    """

    model: str
    enabled: bool
    plans: tuple[PlanStatus, ...] = ()
    measured_bytes: int | None = None
    measured: str | None = None
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        if not self.enabled:
            return f"{self.model}: not enabled"
        head = f"{self.model}: enabled" + (f", {self.measured}" if self.measured else "")
        if len(self.notes) == 1 and not self.plans:
            return f"{head}, {self.notes[0]}"
        return "\n".join(limited([head, *(f"  {line}" for line in (*self.plans, *self.notes))]))


def status(model: keras.Model) -> Status:
    """Report which parts of `model` are enabled, by which plans they run, and what these are predicted to need.

    Args:
        model: Any `keras.Model`. Parts of it that were enabled are looked at too.

    Returns:
        A `Status`; print it.

    Raises:
        UnsupportedModelError: If `model` is no `keras.Model`.

    Example:
        >>> import keras, tfgc
        >>> model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8)], name="net")
        >>> model = tfgc.enable(model, tfgc.plan(model, strategy="uniform", segments=1))
        >>> [one.plan.strategy for one in tfgc.status(model).plans]
        ['uniform']
    """
    model_checks.check_model(model)
    inside = keras_models.layers_inside(model)
    plans, notes = list[PlanStatus](), list[str]()
    for part in filter(functional_graphs.is_patched_call, inside):
        call = stand_in(part) or vars(part)["call"]
        path = "" if part is model else part.path or part.name
        found = _of(call, path)
        plans += found
        if not found:
            notes.append(f"{path}: {_note(part, call)}" if path else _note(part, call))
    measured = peak_memory.measured(model)
    return Status(
        model.name, bool(plans or notes), tuple(plans), measured and measured.step_bytes, measured and str(measured),
        tuple(notes),
    )  # fmt: skip


def _of(call: Any, part: str) -> list[PlanStatus]:
    """What replaces the `call` of a part of the model."""
    if isinstance(call, PlannedCalls) and not call.plans and call.whole.given is not None:
        return [_given(call.whole.given, part)]
    if not isinstance(call, PlannedCalls):
        return [PlanStatus(None, part, unchanged=call.obstacle if isinstance(call, LayerCall) else None)]
    return [_made(made, part, signature.sizes) for signature, made in call.plans.items()]


def _note(part: Any, call: Any) -> str:
    """Why there is no plan: of a model that trains, it may be another one whose step does not call it."""
    if call.note is not None:
        return call.note
    outer = stale_traces.trained_with(part)
    if not outer:
        return "to be planned at its first training call"
    if any(functional_graphs.is_patched_call(one) for one in outer):
        return f"trains by the plan of {outer[0].name!r}, which runs its layers"
    return f"trains as before: {outer[0].name!r} trains its layers without calling it; enable that model"


def _given(plan: Plan, part: str) -> PlanStatus:
    outlook = plan.outlook
    if outlook is None:
        return PlanStatus(plan, part, batch_size=plan.batch_size)
    return PlanStatus(
        plan, part, batch_size=plan.batch_size, predicted_bytes=outlook.needed_bytes,
        plain_bytes=outlook.plain_needed_bytes, overhead=outlook.overhead,
    )  # fmt: skip


def _made(made: PlannedStep, part: str = "", sizes: Any = None) -> PlanStatus:
    return PlanStatus(
        made.plan, part, made.mode, sizes, made.batch_size, made.predicted_bytes, made.plain_bytes, made.overhead,
        made.seconds, made.unchanged, made.measured_bytes, made.changes,
    )  # fmt: skip
