"""What XLA's GPU compiler allocates for training steps, plain and planned for it, next to what was predicted.

Nothing is run: the steps are compiled for an H100, on a machine that needs no GPU.
"""

import dataclasses
import statistics

from tfgc._records.job import Case
from tfgc._records.measurement import Measurement, Results, Study
from tfgc._records.table import TextTable
from tfgc._suites import _figures, _rows
from tfgc._units import format_bytes, format_percent

TARGET = "h100"
# Networks and batches.
_NETWORKS = {
    "resnet50": 16,
    "resnet152": 8,
    "densenet121": 8,
    "efficientnetb0": 16,
    "mobilenetv2": 32,
    "inceptionv3": 16,
    "convnexttiny": 8,
    "xception": 8,
    "unet": 8,
    "vit": 16,
    "gpt(6, 256, 256, 5000)": 8,
    "transformer_encoder": 8,
}
_BUDGETS = ("70%", "50%")
_HEADS = ("network, batch", "step", "compiled", "of plain", "predicted", "off by", "overhead", "budget")
_LEGEND = (
    "compiled: temporary bytes of the whole step (SGD, squared error) in XLA's own assignment of buffers, weights and "
    "batch left out. overhead: predicted work on top of the plain step's. budget: whether the compiled step, weights "
    "and no batch included, is within that share of the plain compiled step, which is the budget of the plan."
)


def rows(scale: float) -> list[_rows.SuiteRow]:
    """Each network plain, with the least peak, and within two shares of the plain step."""
    made = []
    for network, batch_size in _NETWORKS.items():
        batch_size = _rows.scaled(batch_size, scale)
        cases = _rows.cases(network, batch_size, "plain-xla", "optimal-xla")
        cases += tuple(
            Case(network, (network, None), budget, "xla", batch_size, strategy="budget", options={"budget": budget})
            for budget in _BUDGETS
        )
        made.append(_rows.SuiteRow(tuple(dataclasses.replace(case, target=TARGET) for case in cases)))
    return made


def sheets(results: Results) -> list[TextTable]:
    """A row for each step."""
    table = [_row(one, record, one.record("plain-xla")) for one in results.studies for record in one.records]
    return [_figures.table("Compiled for an H100", _HEADS, table, _LEGEND, summary=_summary(results))]


def _row(study: Study, record: Measurement, plain: Measurement | None) -> tuple[str, ...]:
    head = _figures.heading(study), record.case
    predicted = record.predicted
    if predicted is None:
        return *head, record.status, "", "", "", "", ""
    ours = format_bytes(predicted.peak_bytes), format_percent(predicted.overhead)
    if record.status != "ok" or not record.peak_bytes:
        return *head, record.status, "", ours[0], "", ours[1], ""
    cut_off, _ = record.against(plain)
    share = "" if record is plain or cut_off is None else format_percent(1 - cut_off)
    excess = _excess(record, plain)
    kept = "" if excess is None else "holds" if excess <= 0 else f"missed by {format_percent(excess)}"
    return *head, format_bytes(record.peak_bytes), share, ours[0], format_percent(_off(record), "+.1f"), ours[1], kept


def _off(record: Measurement) -> float:
    """How far the prediction is above what was compiled, as a fraction of it."""
    assert record.predicted is not None
    return record.predicted.peak_bytes / (record.peak_bytes or 1) - 1


def _excess(record: Measurement, plain: Measurement | None) -> float | None:
    """How far the whole step is above its budget, as a fraction of that; None without one."""
    if record.case not in _BUDGETS or plain is None or record.status != "ok" or plain.status != "ok":
        return None
    whole, all_of_plain = ((r.peak_bytes or 0) + (r.resident_bytes or 0) for r in (record, plain))
    return whole / (float(record.case.rstrip("%")) / 100 * all_of_plain) - 1


def _summary(results: Results) -> str:
    """How good the predictions are, and how many of the budgets hold."""
    pairs = [(record, study.record("plain-xla")) for study in results.studies for record in study.records]
    offs = [abs(_off(record)) for record, _ in pairs if record.status == "ok" and record.predicted is not None]
    excesses = [excess for record, plain in pairs if (excess := _excess(record, plain)) is not None]
    if not offs:
        return ""
    held, near = (sum(excess <= most for excess in excesses) for most in (0, 0.05))
    within = sum(off <= 0.12 for off in offs)
    return (
        f"Predictions are {format_percent(statistics.median(offs))} off at the median; {within} of {len(offs)} are "
        f"within 12 %. {held} of {len(excesses)} budgets hold, {near} to within 5 %."
    )
