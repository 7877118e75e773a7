"""The largest batches that fit in a budget: as data, and how they are told. No TensorFlow."""

import dataclasses

from tfgc._records.table import TextTable
from tfgc._units import format_bytes

# No batch beyond is looked at: with so many samples it is not memory that limits training.
MOST = 2**20


@dataclasses.dataclass(frozen=True)
class Reach:
    """How far one way of training goes.

    Attributes:
        case: `plain` or the strategy.
        predicted_batch_size: The largest batch that is predicted to fit; 0 if not even one sample is.
        predicted_bytes: What a step of that batch should need; of one sample where none should fit.
        batch_size: The largest batch that was measured to fit; the predicted one where nothing was measured.
        above: The least batch that was measured not to fit; None if there is none.
        confirmed: Whether `batch_size` was measured to fit and a batch at most 2 % or one sample above it not to; 0
            counts as fitting, and nothing above the largest batch that is looked at.
        records: A `Measurement` of each batch that was run, in the order in which they were.
    """

    case: str
    predicted_batch_size: int
    predicted_bytes: int
    batch_size: int
    above: int | None = None
    confirmed: bool = False
    records: tuple = ()

    @property
    def measured_bytes(self):
        """What the step of `batch_size` took at most, as measured; None if it was not run."""
        return next((taken(r) for r in self.records if r.batch_size == self.batch_size), None)


@dataclasses.dataclass(frozen=True, repr=False)
class MaxBatch:
    """The largest batch whose step fits in a budget. `int()` of it is that batch.

    Attributes:
        network: What is trained.
        budget_bytes: The budget.
        fixed_bytes: Weights and optimizer slots, in every step.
        best: How far training goes by the strategy, or by any plan: a `Reach`.
        plain: How far it goes if nothing is recomputed, likewise.
        plan: The plan that was found and measured, for `tfgc.enable`; its bytes are those of the predicted batch. None
            for `keep_all`.
    """

    network: str
    budget_bytes: int
    fixed_bytes: int
    best: Reach
    plain: Reach
    plan: object

    @property
    def reaches(self):
        """Each way of training: plain, and the strategy where that is another one."""
        return (self.plain,) if self.best is self.plain else (self.plain, self.best)

    @property
    def batch_size(self):
        """The largest batch that fits; measured, unless nothing was."""
        return self.best.batch_size

    @property
    def predicted_batch_size(self):
        """The largest batch that is predicted to fit."""
        return self.best.predicted_batch_size

    @property
    def plain_batch_size(self):
        """The largest batch that fits if nothing is recomputed; 0 if not even one sample does."""
        return self.plain.batch_size

    @property
    def confirmed(self):
        """Whether the batch was measured to fit, and one just above it not to."""
        return self.best.confirmed

    @property
    def records(self):
        """A `Measurement` of each batch that was run, the plain ones first."""
        return tuple(record for reach in self.reaches for record in reach.records)

    @property
    def times(self):
        """How many times the plain batch the batch is; None where no plain sample fits."""
        return self.batch_size / self.plain_batch_size if self.plain_batch_size else None

    def __index__(self):
        return self.batch_size

    def __repr__(self):
        words = f"{self.network} in {format_bytes(self.budget_bytes)}: {_reached(self.best)}"
        if self.best is not self.plain:
            words += f"; plain {_reached(self.plain)}"
            words += "" if self.times is None else f"; {self.times:.3g} times as many samples"
        return words


def taken(record):
    """Most bytes of a measured step, what is resident between steps included; None where it ran out of memory."""
    return record.resident_bytes + record.peak_bytes_max if record.status == "ok" else None


def facts(result):
    """A `MaxBatch` as data to write as JSON, without the measurements."""

    def told(reach):
        data = {
            field.name: getattr(reach, field.name) for field in dataclasses.fields(reach) if field.name != "records"
        }
        return {**data, "measured_bytes": reach.measured_bytes, "runs": len(reach.records)}

    return {
        "network": result.network,
        "budget_bytes": result.budget_bytes,
        "fixed_bytes": result.fixed_bytes,
        "batch_size": result.batch_size,
        "plain_batch_size": result.plain_batch_size,
        "times": result.times,
        "confirmed": result.confirmed,
        "best": told(result.best),
        "plain": told(result.plain),
    }


def table(result):
    """The table of a `MaxBatch`: a row for plain training and one for the strategy."""
    heads = ("way", "predicted", "needs", "measured", "takes", "does not fit", "times plain")
    title = f"{result.network}: the largest batch in {format_bytes(result.budget_bytes)}"
    return TextTable(title, heads, tuple(_row(result, reach) for reach in result.reaches), _legend(result))


def _row(result, reach):
    taken = reach.measured_bytes
    return (
        reach.case,
        _count(reach.predicted_batch_size),
        format_bytes(reach.predicted_bytes),
        _count(reach.batch_size) if reach.records else "",
        "" if taken is None else format_bytes(taken),
        "" if reach.above is None else str(reach.above),
        f"{reach.batch_size / result.plain_batch_size:.2f}" if result.plain_batch_size else "",
    )


def _reached(reach):
    """Such as `batch 92 (measured; predicted 95)`."""
    how = "predicted"
    if reach.records:
        how = "measured" if reach.confirmed else "measured, not to the last sample"
        how += "" if reach.predicted_batch_size == reach.batch_size else f"; predicted {reach.predicted_batch_size}"
    return f"batch {_count(reach.batch_size)} ({how})"


def _count(batch):
    return f"{batch} or more" if batch >= MOST else str(batch)


def _legend(result):
    words = (
        f"needs, takes: the whole step, {format_bytes(result.fixed_bytes)} of weights and optimizer slots and the "
        "batch itself included, in the allocator's chunks. does not fit: the least batch that was measured to need "
        "more."
    )
    loose = [reach.case for reach in result.reaches if reach.records and not reach.confirmed]
    if loose:
        words += f" Not found to the last sample, for want of runs: {', '.join(loose)}."
    if not result.records:
        words += " Predicted; nothing was run."
    return words
