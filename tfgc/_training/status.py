"""What is on in a model, and what it promised: `tfgc.status`."""

import dataclasses
from typing import Any

import keras

from tfgc._core.plan import Plan
from tfgc._core.shown import Brief, Shown, limited
from tfgc._framework import keras_models, model_checks
from tfgc._planning.first_batch import PlannedStep
from tfgc._tracing import functional_graphs
from tfgc._training import plan_report
from tfgc._training.first_call import FirstCall
from tfgc._training.first_step import FirstStep
from tfgc._training.layer_calls import LayerCall, plan_of
from tfgc._training.peak_memory import measured_bytes
from tfgc._training.segment_runner import Runner
from tfgc._training.stand_ins import stand_in
from tfgc._units import format_bytes


@dataclasses.dataclass(frozen=True, repr=False)
class PlanStatus(Brief):
    """A plan that a model runs by.

    Attributes:
        plan: The plan; None for a layer that was chosen by `layers=`.
        part: The path of the model or layer in the model that was asked about; "" is the model itself.
        mode: The mode of the calls that it is for, as in `tfgc.estimate` and `tfgc.verify`; None: any.
        sizes: For each input its shape without the batch, and its dtype; None: any.
        batch_size: Samples in the batch that it was made for, or None.
        predicted_bytes: The peak of the whole step, as TensorFlow's allocator should report it; None if unknown.
        plain_bytes: The same if nothing is recomputed.
        overhead: Work on top of the plain step's, as a fraction of it; None if unknown.
        planning_seconds: How long planning took at the first call; None for a plan that was given.
        unchanged: Why nothing is recomputed although that was asked for, or None.
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

    def __str__(self) -> str:
        name = f"{self.part}: " if self.part else ""
        if self.plan is None:
            return f"{name}recomputed as one segment" if self.unchanged is None else f"{name}kept: {self.unchanged}"
        where = "" if self.mode is None else f", {self.mode}"
        inputs = "" if self.sizes is None else ", inputs " + " ".join(f"{dtype}{list(s)}" for s, dtype in self.sizes)
        promise = plan_report.promise(self.plan, self.predicted_bytes, self.plain_bytes)
        if self.unchanged is not None:
            promise = f"trains as before: {self.unchanged}"
        return f"{name}by {self.plan.strategy!r}{where}{inputs}: {promise}"


@dataclasses.dataclass(frozen=True, repr=False)
class Status(Shown):
    """What tfgc does in a model.

    Attributes:
        model: The name of the model.
        enabled: Whether the model, or a part of it, is enabled.
        plans: What it runs by, the one that was used last at the end; empty until the first training call of a model
            that was enabled without a plan.
        measured_bytes: The most bytes that a step needed when the model last trained with `tfgc.PeakMemory`, or None.

    Example:
        >>> import keras, tfgc
        >>> model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8)], name="net")
        >>> print(tfgc.status(model))
        net: not enabled
        >>> print(tfgc.status(tfgc.enable(model)))
        net: enabled, to be planned at the first training call
    """

    model: str
    enabled: bool
    plans: tuple[PlanStatus, ...] = ()
    measured_bytes: int | None = None

    def __str__(self) -> str:
        if not self.enabled:
            return f"{self.model}: not enabled"
        if not self.plans:
            return f"{self.model}: enabled, to be planned at the first training call"
        measured = "" if self.measured_bytes is None else f", {format_bytes(self.measured_bytes)} measured for a step"
        return "\n".join(limited([f"{self.model}: enabled{measured}", *(f"  {plan}" for plan in self.plans)]))


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
    enabled = [part for part in keras_models.layers_inside(model) if functional_graphs.is_patched_call(part)]
    own, by_calls = stand_in(model), plan_of(model)
    if isinstance(own, FirstStep):  # the parts that are on belong to its plan
        plans = [] if own.latest is None else [_made(own.latest)]
    elif by_calls is None:
        paths = ["" if part is model else part.path or part.name for part in enabled]
        plans = [one for part, path in zip(enabled, paths) for one in _of(stand_in(part) or vars(part)["call"], path)]
    elif isinstance(own, FirstCall):  # and the layers of a plan by calls that it chose
        plans = _of(own, "")
    else:  # and those of one that was given
        plans = [PlanStatus(by_calls, batch_size=by_calls.batch_size)]
    return Status(model.name, bool(enabled) or by_calls is not None, tuple(plans), measured_bytes(model))


def _of(call: Any, part: str) -> list[PlanStatus]:
    """What replaces the `call` of a part of the model."""
    if isinstance(call, Runner):
        return [PlanStatus(call.plan, part, batch_size=call.plan.batch_size)]
    if not isinstance(call, FirstCall):
        return [PlanStatus(None, part, unchanged=call.block.obstacle if isinstance(call, LayerCall) else None)]
    return [_made(made, part, signature.sizes) for signature, made in call.plans.items()]


def _made(made: PlannedStep, part: str = "", sizes: Any = None) -> PlanStatus:
    return PlanStatus(
        made.plan, part, made.mode, sizes, made.batch_size, made.predicted_bytes, made.plain_bytes, made.overhead,
        made.seconds, made.unchanged,
    )  # fmt: skip
