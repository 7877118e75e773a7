"""Render the largest batches that fit in a budget as a table. No TensorFlow."""

from tfgc._records.batch_limit import MaxBatch, Reach, batch_text
from tfgc._records.table import TextTable
from tfgc._units import format_bytes


def table(result: MaxBatch) -> TextTable:
    """The table of a `MaxBatch`: a row for plain training and one for the strategy."""
    heads = ("way", "predicted", "needs", "measured", "takes", "does not fit", "times plain")
    title = f"{result.network}: the largest batch in {format_bytes(result.budget_bytes)}"
    return TextTable(title, heads, tuple(_row(result, reach) for reach in result.reaches), _legend(result))


def _row(result: MaxBatch, reach: Reach) -> tuple[str, ...]:
    measured = reach.measured_bytes
    return (
        reach.case,
        batch_text(reach.predicted_batch_size),
        format_bytes(reach.predicted_bytes),
        batch_text(reach.batch_size) if reach.records else "",
        "" if measured is None else format_bytes(measured),
        "" if reach.above is None else str(reach.above),
        f"{reach.batch_size / result.plain_batch_size:.2f}" if result.plain_batch_size else "",
    )


def _legend(result: MaxBatch) -> str:
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
