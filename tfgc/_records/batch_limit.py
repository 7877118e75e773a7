"""The largest batches that fit in a budget, as data and as JSON."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from tfgc._core.plan import Plan
from tfgc._core.shown import Brief, Shown
from tfgc._records.measurement import Measurement
from tfgc._units import format_bytes

# No larger batch is tried: with so many samples memory is not what limits training.
MOST = 2**20


@dataclasses.dataclass(frozen=True, repr=False)
class Reach(Brief):
    """The largest batch that fits when training in one way.

    Attributes:
        case: `plain` or the strategy.
        predicted_batch_size: The largest batch that is predicted to fit; 0 if not even one sample is.
        predicted_bytes: What the whole step of that batch should need, as the allocator reports it; of one sample if
            none should fit.
        batch_size: The largest batch that was measured to fit; the predicted one if nothing was measured.
        above: The least batch that was measured not to fit; None if there is none.
        confirmed: Whether `batch_size` was measured to fit and a batch at most 2 % or one sample above it not to; 0
            counts as fitting, and nothing above the largest batch that is tried.
        records: A `Measurement` of each batch that was run, in the order of the runs.
    """

    case: str
    predicted_batch_size: int
    predicted_bytes: int
    batch_size: int
    above: int | None = None
    confirmed: bool = False
    records: tuple[Measurement, ...] = ()

    @property
    def needed_bytes(self) -> int:
        """What the step of `batch_size` needs: measured, or else predicted."""
        return self.predicted_bytes if self.measured_bytes is None else self.measured_bytes

    @property
    def measured_bytes(self) -> int | None:
        """The most that the allocator reported in the step of `batch_size`; None if it was not run."""
        return next((step_bytes(r) for r in self.records if r.batch_size == self.batch_size), None)


@dataclasses.dataclass(frozen=True, repr=False)
class MaxBatch(Shown):
    """The largest batch whose step fits in a budget. `int()` of it is that batch.

    Attributes:
        network: What is trained.
        budget_bytes: The budget for the whole step.
        fixed_bytes: Weights and optimizer slots, part of every step.
        best: The `Reach` of training by the strategy, or by any plan.
        plain: The `Reach` of training without recomputation.
        plan: The plan that was found and measured, for `tfgc.enable`; its bytes are those of the predicted batch. None
            for `keep_all`.
    """

    network: str
    budget_bytes: int
    fixed_bytes: int
    best: Reach
    plain: Reach
    plan: Plan | None

    @property
    def reaches(self) -> tuple[Reach, ...]:
        """Each way of training: plain, and the strategy if that differs."""
        return (self.plain,) if self.best is self.plain else (self.plain, self.best)

    @property
    def batch_size(self) -> int:
        """The largest batch that fits: the measured one, or the predicted one if nothing was measured."""
        return self.best.batch_size

    @property
    def predicted_batch_size(self) -> int:
        """The largest batch that is predicted to fit."""
        return self.best.predicted_batch_size

    @property
    def plain_batch_size(self) -> int:
        """The largest batch that fits if nothing is recomputed; 0 if not even one sample does."""
        return self.plain.batch_size

    @property
    def confirmed(self) -> bool:
        """Whether the batch was measured to fit, and one just above it not to."""
        return self.best.confirmed

    @property
    def records(self) -> tuple[Measurement, ...]:
        """A `Measurement` of each batch that was run, the plain ones first."""
        return tuple(record for reach in self.reaches for record in reach.records)

    @property
    def times(self) -> float | None:
        """The batch as a multiple of the plain one; None if no plain sample fits."""
        return self.batch_size / self.plain_batch_size if self.plain_batch_size else None

    def __index__(self) -> int:
        return self.batch_size

    def _shown(self) -> tuple[str, Sequence[str], Sequence[Sequence[str]]]:
        words = f"of {self.network} in {format_bytes(self.budget_bytes)}: {_reached(self.best)}"
        if self.best is not self.plain:
            words += f"; plain {_reached(self.plain)}"
            words += "" if self.times in (None, 1) else f"; {self.times:.3g} times as many samples"
        rows = [(reach.case, _reached(reach), format_bytes(reach.needed_bytes)) for reach in self.reaches]
        return words, ("", "largest batch", "needs"), rows


def step_bytes(record: Measurement) -> int | None:
    """The allocator's peak in a measured step, with what is resident between steps; None if it ran out of memory."""
    if record.status != "ok" or record.resident_bytes is None or record.peak_bytes_max is None:
        return None
    return record.resident_bytes + record.peak_bytes_max


def facts(result: MaxBatch) -> dict[str, Any]:
    """A `MaxBatch` as data to write as JSON, without the measurements."""
    names = ("network", "budget_bytes", "fixed_bytes", "batch_size", "plain_batch_size", "times", "confirmed")
    data = {name: getattr(result, name) for name in names}
    return {**data, "best": _reach_facts(result.best), "plain": _reach_facts(result.plain)}


def _reach_facts(reach: Reach) -> dict[str, Any]:
    data = {field.name: getattr(reach, field.name) for field in dataclasses.fields(reach) if field.name != "records"}
    return {**data, "measured_bytes": reach.measured_bytes, "runs": len(reach.records)}


def _reached(reach: Reach) -> str:
    """Such as `batch 92 (measured; predicted 95)`."""
    how = "predicted"
    if reach.records:
        how = "measured" if reach.confirmed else "measured, not to the last sample"
        how += "" if reach.predicted_batch_size == reach.batch_size else f"; predicted {reach.predicted_batch_size}"
    return f"batch {batch_text(reach.batch_size)} ({how})"


def batch_text(batch: int) -> str:
    """A batch, or that it is the largest that is looked at, as text."""
    return f"{batch} or more" if batch >= MOST else str(batch)
