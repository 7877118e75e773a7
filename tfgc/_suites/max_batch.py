"""The largest batch of ResNet50 that fits in what a TF1 study had: plain, recomputed, swapped, and a hybrid."""

from tfgc import _suites
from tfgc._units import format_bytes

_HEADS = ("system", "largest batch", "times plain", "predicted", "next batch measured not to fit")
_LEGEND = (
    "Budget {budget}: the study's largest peak{part}. tfgc: the plan that needs least at each batch, SGD, the step in "
    "tf.function, measured around the answer; the batch itself counts. Swapping and the hybrid are not built in "
    "tfgc yet."
)


def rows(scale):
    """One search; `scale` shrinks the budget."""
    table = {row["system"]: row for row in _suites.published("tf1_max_batch_resnet50")}
    published = {system: row["max_batch"] for system, row in table.items()}
    most = max(row["peak_mb"] for row in table.values())
    return [_suites.SearchRow("resnet50", int(most * 1e6 * scale), {**published, "budget_bytes": int(most * 1e6)})]


def sheets(results):
    """A row for each system of the study, then tfgc's."""
    made = []
    for study in results.studies:
        theirs, ours = dict(study.published), study.found
        whole = theirs.pop("budget_bytes")
        rows = [
            (f"study: {system}", str(batch), f"{batch / theirs['plain']:.2f}", "", "")
            for system, batch in theirs.items()
        ]
        for label, key in (("tfgc: plain", "plain_"), ("tfgc: recomputed", "")):
            batch, plain, above = (ours.get(name) for name in (f"{key}batch_size", "plain_batch_size", f"{key}above"))
            told = "" if batch is None else str(batch)
            times = f"{batch / plain:.2f}" if batch and plain else ""
            rows.append(
                (label, told, times, str(ours[f"{key}predicted_batch_size"]), "" if above is None else str(above))
            )
        part = "" if ours["budget_bytes"] == whole else f", times {ours['budget_bytes'] / whole:.3g}"
        legend = _LEGEND.format(budget=format_bytes(ours["budget_bytes"]), part=part)
        made.append(_suites.TextTable(f"Largest batch of {study.network}", _HEADS, tuple(rows), legend))
    return made
