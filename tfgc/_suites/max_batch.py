"""The largest batch of ResNet50 that fits in what a TF1 study had: plain, recomputed, swapped, and a hybrid."""

from typing import Any

from tfgc._records.measurement import Results
from tfgc._records.table import TextTable
from tfgc._suites import _figures, _rows
from tfgc._units import format_bytes

_HEADS = ("system", "largest batch", "times plain", "predicted", "next batch measured not to fit")
_LEGEND = (
    "Budget {budget}: the study's largest peak{part}. tfgc: the plan that needs least at each batch, SGD, the step in "
    "tf.function, measured around the predicted batch; the batch itself counts. Swapping and the hybrid were not run "
    "in tfgc."
)


def rows(scale: float) -> list[_rows.SearchRow]:
    """One search; `scale` shrinks the budget."""
    table = {row["system"]: row for row in _rows.published("tf1_max_batch_resnet50")}
    published = {system: row["max_batch"] for system, row in table.items()}
    most = max(row["peak_mb"] for row in table.values())
    return [_rows.SearchRow("resnet50", int(most * 1e6 * scale), {**published, "budget_bytes": int(most * 1e6)})]


def sheets(results: Results) -> list[TextTable]:
    """A row for each system of the study, then tfgc's."""
    made = []
    for study in results.studies:
        theirs, ours = dict(study.published), study.found
        whole = theirs.pop("budget_bytes")
        rows = [
            (f"study: {system}", str(batch), f"{batch / theirs['plain']:.2f}", "", "")
            for system, batch in theirs.items()
        ]
        rows += [_ours(ours, "tfgc: plain", "plain_"), _ours(ours, "tfgc: recomputed", "")]
        part = "" if ours["budget_bytes"] == whole else f", times {ours['budget_bytes'] / whole:.3g}"
        legend = _LEGEND.format(budget=format_bytes(ours["budget_bytes"]), part=part)
        made.append(
            _figures.table(f"Largest batch of {study.network}", _HEADS, rows, legend, summary=_summary(theirs, ours))
        )
    return made


def _ours(ours: dict[str, Any], label: str, key: str) -> tuple[str, ...]:
    batch, plain, above = (ours.get(name) for name in (f"{key}batch_size", "plain_batch_size", f"{key}above"))
    times = f"{batch / plain:.2f}" if batch and plain else ""
    predicted = str(ours[f"{key}predicted_batch_size"])
    return label, "" if batch is None else str(batch), times, predicted, "" if above is None else str(above)


def _summary(theirs: dict[str, Any], ours: dict[str, Any]) -> str:
    """How many times the plain batch fits, compared with the best of the study."""
    best = max(theirs, key=lambda system: theirs[system])
    kind = "" if ours.get("batch_size") else "predicted_"
    batch, plain = ours[f"{kind}batch_size"], ours[f"plain_{kind}batch_size"]
    if not plain:
        return ""
    held = "met" if batch / plain >= theirs[best] / theirs["plain"] else "missed"
    return (
        f"At least the study's gain ({best}: {theirs[best] / theirs['plain']:.2f} times the plain batch): {held}, with "
        f"{batch / plain:.2f} times{' by prediction' if kind else ''}."
    )
