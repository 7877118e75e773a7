"""Plans of a step that XLA compiles: a few candidates are compiled, and the best by the compiler's own figures is kept.

XLA fuses, schedules and lays out a step as it likes, so nothing here predicts it. Candidates are those of the step as
traced, and of one where what is elementwise is free (`_step.fused`).
"""

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfgc import _progress
from tfgc._core.recently_used import RecentlyUsed
from tfgc._errors import InfeasibleBudgetError
from tfgc._framework import xla
from tfgc._planning import function_trace
from tfgc._planning.request import Request
from tfgc._planning.step_plans import GAIN, Rewritten, StepPlans
from tfgc._rewrite.liveness import peak
from tfgc._step.fused import fused, moved
from tfgc._step.step import Step
from tfgc._step.trace import Trace

# Compiles a step by a plan: bytes that XLA lays out beside arguments and results; None where it cannot say.
Compile = Callable[[Rewritten], int | None]
# What is aimed at when a plan is corrected by what another one came to, and what of a room is worth no other try.
_AIM, _ROOMY = 0.97, 0.9
_known: RecentlyUsed[tuple[str, Any], int] = RecentlyUsed(256)


class CompiledPlans(StepPlans):
    """The plans of one step that XLA compiles.

    Peaks are those that the compiler says, of at most `most` compilations, one of which is of the plain step. Of one,
    there is none: peaks are simulated. Where no plan fits in a room, one more may be compiled: that of least peak.

    Args:
        step: The step as traced.
        compiled: Compiles it by a plan.
        most: How many are compiled.
    """

    added = 1.0

    def __init__(self, step: Step, compiled: Compile, most: int) -> None:
        super().__init__(step, moved(step))
        self._fused = StepPlans(fused(step))
        self._compiled, self._left = compiled, most if most > 1 else 0
        self._said: dict[Any, int] = {}

    @functools.cached_property
    def plain_bytes(self) -> int:
        """What is compiled for the plain step, beside arguments and results."""
        found = self._said_of(Rewritten(self.step, (), 0, 0, 0.0, "plain"))
        return peak(self.step) if found is None else found

    def least(self) -> Rewritten:
        """Of the plans of least peak as simulated, that for which the least is compiled; the plain step as before."""
        # Where parts are put together, what is stored of a step as traced are the wholes.
        other = self._as_fused(self._fused.least()) if self.free else self.by("optimal")
        found = [plan for plan in (super().least(), other) if not plan.unchanged]
        best = min(map(self._judged, found), key=lambda plan: plan.peak_bytes, default=None)
        if best is None or best.peak_bytes > GAIN * self.plain_bytes:
            return self.plain("recomputing would save less than 5 % of the step")
        return best

    def within(self, room: int) -> Rewritten:
        """The plan of least work that is compiled to at most so many bytes, of those that were tried."""
        if self.plain_bytes <= room or not (self._left or self._said):
            return super().within(room)
        tried: list[Rewritten] = []
        aim = room / StepPlans.added
        while self._left:
            try:
                plan = super().within(int(aim))
            except InfeasibleBudgetError:
                plan = super().least()
            if any(plan.cuts == each.cuts for each in tried):
                break
            tried.append(judged := self._judged(plan))
            if _ROOMY * room < judged.peak_bytes <= room:
                break
            aim = _AIM * plan.peak_bytes * room / judged.peak_bytes
        fitting = [plan for plan in tried if plan.peak_bytes <= room]
        if fitting:
            return min(fitting, key=lambda plan: plan.overhead)
        self._left = max(self._left, 1)
        least = min(self.least(), *tried, key=lambda plan: plan.peak_bytes)
        if least.peak_bytes > room:
            raise InfeasibleBudgetError(room, least.peak_bytes, "the step")
        return least

    def _as_fused(self, plan: Rewritten) -> Rewritten:
        """The step itself by a plan of the fused one."""
        return plan if plan.unchanged else self.by_cuts(plan.cuts, "")

    def _judged(self, plan: Rewritten) -> Rewritten:
        """A plan with what is compiled for it, or simulated where no more are compiled."""
        said = self._said_of(plan)
        return dataclasses.replace(plan, plain_bytes=self.plain_bytes, peak_bytes=said or plan.peak_bytes)

    def _said_of(self, plan: Rewritten) -> int | None:
        key = plan.cuts, bool(plan.unchanged)
        if key not in self._said and self._left:
            said = self._compiled(plan)
            self._left = 0 if said is None else self._left - 1
            if said is not None:
                self._said[key] = said
        return self._said.get(key)


def plans_for(
    trace: Trace, shapes: Sequence[tf.TensorShape], request: Request, name: str, shown: bool,
    compiled: Compile | None = None,
) -> CompiledPlans:  # fmt: skip
    """The plans of a trace, as XLA compiles it for the device at hand, or as `compiled` does.

    Args:
        trace: The trace.
        shapes: Of the tensors that a call gives it.
        request: What they are for; none is compiled where it says the plan, the strategy or the layers.
        name: What lines call it.
        shown: Whether a line says so where one takes long.
        compiled: Compiles it elsewhere.
    """
    own = fingerprint(trace, shapes)
    is_given = request.plan is not None or request.strategy is not None or request.layers is not None

    def asked(plan: Rewritten) -> int | None:
        key = own, (plan.cuts, bool(plan.unchanged), compiled)
        if key not in _known:
            what = "as it is" if plan.unchanged else f"by a plan of {len(plan.cuts) + 1} segments"
            with _progress.patient(f"compiling {name!r} {what} by XLA, to see what it needs", shown):
                said = (compiled or functools.partial(_here, trace, shapes))(plan)
            if said is None:
                return None
            _known[key] = said
        return _known.get(key)

    return CompiledPlans(trace.step, asked, 1 if is_given else request.candidates)


def fingerprint(trace: Trace, shapes: Sequence[tf.TensorShape]) -> str:
    """What a trace computes for arguments of these shapes; equal for those that differ in names alone."""
    found = hashlib.sha256(str(list(shapes)).encode())
    for node, (read, waits) in zip(trace.nodes, trace.read):
        attributes = sorted((key, value.SerializeToString()) for key, value in node.attr.items() if key[0] != "_")
        found.update(repr((node.op, read, sorted(waits), attributes)).encode())
    return found.hexdigest()


def _here(trace: Trace, shapes: Sequence[tf.TensorShape], plan: Rewritten) -> int | None:
    """What XLA lays out for the device at hand; None where it does not compile the step without its values."""
    given = function_trace.given_to(trace)
    if len(given) != len(shapes) or not all(shape.is_fully_defined() for shape in shapes):
        return None
    specs = [tf.TensorSpec(shape, tensor.dtype) for shape, tensor in zip(shapes, given)]
    try:
        return xla.temporary_bytes_of(function_trace.compiled(trace, plan), specs)
    except (ValueError, TypeError, tf.errors.OpError):  # of what the function closes over, and of what XLA has not
        return None
