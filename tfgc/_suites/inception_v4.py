"""Inception v4 at batch 32 compared with a TF1 study: plain, recomputed, swapped to the host, and a hybrid of both."""

from collections.abc import Iterator

from tfgc._records.measurement import Results, Study
from tfgc._records.table import TextTable
from tfgc._suites import _figures, _rows
from tfgc._units import format_percent

_HEADS = ("system", "activations' peak of plain", "time of plain", "predicted peak", "predicted work")
_LEGEND = (
    "Shares and multiples of the plain step's: of the study's own plain case on a GPU, and here of plain-graph at "
    "batch {batch}. Swapping and the hybrid were not run in tfgc."
)
_OURS = {"optimal-graph": "tfgc: optimal", "published-graph": "tfgc: at the study's recompute share"}


def rows(scale: float) -> list[_rows.SuiteRow]:
    """One network; its published share of activations is also planned for."""
    table = {row["system"]: row for row in _rows.published("tf1_inception_v4")}
    plain = table.pop("plain")
    published = {}
    for system, row in table.items():
        published[f"{system}_share"] = row["activation_mb"] / plain["activation_mb"]
        published[f"{system}_times"] = row["step_s"] / plain["step_s"]
    cases = _rows.cases(
        "inception_v4", _rows.scaled(plain["batch"], scale), "plain-graph", "optimal-graph", "published-graph",
        shares={"published": published["recompute_share"]},
    )  # fmt: skip
    return [_rows.SuiteRow(cases, published, front=True)]


def sheets(results: Results) -> list[TextTable]:
    """A row for each system of the study, then tfgc's."""
    return [
        _figures.table(
            "Inception v4", _HEADS, _systems(study), _LEGEND.format(batch=study.batch_size), summary=_summary(study)
        )
        for study in results.studies
    ]


def _systems(study: Study) -> Iterator[tuple[str, ...]]:
    for key, share in study.published.items():
        system, _, what = key.rpartition("_")
        if what == "share":
            times = _figures.times(study.published[f"{system}_times"])
            yield f"study: {system}", format_percent(share), times, "", ""
    for name, label in _OURS.items():
        pairs = _figures.measured(study, name), _figures.predicted(study, name)
        yield label, *(_figures.text(pair, which) for pair in pairs for which in (0, 1))


def _summary(study: Study) -> str:
    """How the plan at the study's share compares with the study's recompute, and how far plans go."""
    same, least = (_figures.known(study, name) for name in ("published-graph", "optimal-graph"))
    if same is None or least is None:
        return ""
    share, times = study.published["recompute_share"], study.published["recompute_times"]
    held = "met" if same[0] <= share and same[1] <= times else "missed"
    return (
        f"The study's recompute needs {format_percent(share)} of the plain peak in {times:.2f} times the plain "
        f"time. No more of either: {held}, with {format_percent(same[0])} in {same[1]:.2f} times the time. The "
        f"plan of least peak needs {format_percent(least[0])} in {least[1]:.2f} times the time."
    )
