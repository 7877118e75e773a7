"""ResNets of 18 to 200 layers compared with a TF1 study: plain, recomputed, swapped to the host, and a hybrid of both.

Its memory figures come from a GPU at 224x224 and batch 32, and at a larger batch for recompute and the hybrid.
`optimal` is the plan with the lowest peak and one replay; at the study's share is the plan with the least work whose
predicted peak is 5 % below it.
"""

from tfgc._records.measurement import Results, Study
from tfgc._records.table import TextTable
from tfgc._suites import _figures, _rows
from tfgc._units import format_percent

DEPTHS = (18, 34, 50, 101, 152, 200)
LARGE_BATCH = 128
_BATCH = 32
_SYSTEMS = {"recompute": "study: recompute", "swap": "study: swap", "hybrid_ome": "study: hybrid"}
_OURS = {"optimal-graph": "optimal", "published-graph": "at the study's share"}
_HEADS = (
    "network, batch", *_SYSTEMS.values(), *(label + more for label in _OURS.values() for more in ("", ", predicted")),
)  # fmt: skip
_TARGET_HEADS = ("network, batch", "floor", "floor set by", "target")
_PEAK_LEGEND = (
    "The activations' peak as a share of the plain step's: of plain-graph here (weights' gradients count), of its own "
    "plain case in the study, which ran out of memory at 200 layers; there the study's columns are megabytes."
)
_TIME_LEGEND = (
    "The time as a multiple of the plain step's; predictions count work. Swapping and the hybrid were not run in tfgc."
)
_TARGET_LEGEND = (
    "target: a smaller share than the study's recompute from 50 layers on (at 200, the share at 152), the planner's "
    "floor before, at no more than 1.25 times the time. Verdicts behind ~ are on predictions."
)
_LARGE_HEADS = (
    "network, batch", "study: recompute", "study: hybrid", "optimal, predicted", "plain, predicted",
    "optimal against the study's recompute",
)  # fmt: skip
_LARGE_LEGEND = (
    "Whole-step peaks, weights included, at the study's batch of {batch}: theirs on a GPU, here predicted for the step "
    "in tf.function by optimal, with SGD."
)


def rows(scale: float) -> list[_rows.SuiteRow]:
    """Six depths at batch 32; then predictions at batch 128 at any scale, since bytes are compared there."""
    table = {(row["system"], row["depth"]): row for row in _rows.published("tf1_resnet_depth")}
    large = {(row["system"], row["depth"]): row for row in _rows.published("tf1_resnet_depth_b128")}
    made = []
    for depth in DEPTHS:
        published = {}
        for system in ("recompute", "swap", "hybrid_ome"):
            plain, row = table["plain", depth], table[system, depth]
            if plain["activation_mb"] != "oom":
                published[f"{system}_share"] = row["activation_mb"] / plain["activation_mb"]
                published[f"{system}_times"] = row["step_s"] / plain["step_s"]
            else:
                published[f"{system}_mb"] = row["activation_mb"]
        # The study's plain step at 200 layers ran out of memory; the goal there is the share at 152.
        share = published["recompute_share"] if "recompute_share" in published else made[-1].published["goal"]
        published["goal"] = share
        cases = _rows.cases(
            f"resnet{depth}", _rows.scaled(_BATCH, scale), "plain-graph", "optimal-graph", "published-graph",
            shares={"published": _rows.MARGIN * share},
        )  # fmt: skip
        made.append(_rows.SuiteRow(cases, published, front=True))
    for depth in DEPTHS:
        published = {f"{system}_peak_mb": large[system, depth]["peak_mb"] for system in ("recompute", "hybrid_ome")}
        cases = _rows.cases(f"resnet{depth}", LARGE_BATCH, "plain-graph", "optimal-graph")
        made.append(_rows.SuiteRow(cases, published, predicted=True))
    return made


def sheets(results: Results) -> list[TextTable]:
    """The targets, the peaks and the times at batch 32, and the whole-step peaks at the larger batch."""
    small = [study for study in results.studies if "recompute_peak_mb" not in study.published]
    large = [study for study in results.studies if "recompute_peak_mb" in study.published]
    made = []
    if small:
        verdicts = {study.network: _target(study) for study in small}
        peaks, times = ([_row(study, which) for study in small] for which in (0, 1))
        target = "A smaller share than the study's recompute, or the floor, at no more than 1.25 times the time"
        made = [
            _figures.table(
                "ResNets by depth, targets", _TARGET_HEADS, map(_target_row, small), _TARGET_LEGEND,
                _figures.outcome(target, verdicts),
            ),
            _figures.table("ResNets by depth, peak", _HEADS, peaks, _PEAK_LEGEND, _less(small, 0)),
            _figures.table("ResNets by depth, time", _HEADS, times, _TIME_LEGEND, _less(small, 1)),
        ]  # fmt: skip
    if large:
        legend = _LARGE_LEGEND.format(batch=large[0].batch_size)
        rows, verdicts = zip(*map(_large, large))
        verdicts = dict(zip((study.network for study in large), verdicts))
        summary = _figures.outcome("Less than the study's recompute, by prediction", verdicts)
        made.append(_figures.table("ResNets by depth, larger batch", _LARGE_HEADS, rows, legend, summary))
    return made


def _target_row(study: Study) -> tuple[str, ...]:
    plain = study.record("plain-graph")
    known = plain and plain.predicted
    floor = known and known.floor_bytes / known.plain_bytes
    return _figures.heading(study), format_percent(floor), known.floor_node if known else "", _target(study)


def _row(study: Study, which: int) -> list[str]:
    """Peaks (0) or times (1): the study's, then ours."""
    theirs = [_published(study, system, which) for system in _SYSTEMS]
    return [_figures.heading(study), *theirs, *_figures.cells(study, _OURS, which)]


def _published(study: Study, system: str, which: int) -> str:
    if f"{system}_share" not in study.published:
        return "" if which else f"{study.published[f'{system}_mb']:,.0f} MB"
    return _figures.text((study.published[f"{system}_share"], study.published[f"{system}_times"]), which)


def _less(studies: list[Study], which: int) -> str:
    """In how many networks each case does at least as well as the study's recompute, by peak (0) or time (1)."""
    key = ("recompute_share", "recompute_times")[which]
    pairs = {
        label: [((ours := _figures.known(study, name)) and ours[which], study.published.get(key)) for study in studies]
        for name, label in _OURS.items()
    }
    return _figures.counts(f"No larger {('share', 'multiple')[which]} than the study's recompute", pairs)


def _target(study: Study) -> str:
    """Whether a plan meets the study's share, or the floor in a shallow network, in 1.25 times the time."""
    optimal = study.record("optimal-graph")
    found = [f for f in (_figures.known(study, name) for name in ("optimal-graph", "published-graph")) if f]
    if optimal is None or not found:
        return "" if optimal is None else f"missed: {optimal.status}"
    sign = "~ " if optimal.status == "predicted" else ""
    if study.network in ("resnet18", "resnet34"):
        records = [study.record(name) for name in ("optimal-graph", "published-graph")]
        known = [(r.predicted.buffer_bytes or 0, r.predicted, r.name) for r in records if r is not None and r.predicted]
        if not known:
            return ""
        buffers, least, name = min(known, key=lambda one: one[0])
        gap, shares = buffers / least.floor_bytes - 1, _figures.known(study, name)
        excess = gap if gap >= 0.005 else -1.0, "floor"
        times = shares[1] if shares else 0.0
    else:
        goal = study.published["goal"]
        share, times = min(found, key=lambda f: max(0, f[0] - goal) + max(0, f[1] - 1.25))
        excess = share - goal, "share"
    return sign + _figures.verdict(excess, (times - 1.25, "time"))


def _large(study: Study) -> tuple[tuple[str, ...], str]:
    """The row of a study at the larger batch, and whether it needs less than the study's recompute."""
    plain, optimal = (_whole_step(study, name) for name in ("plain-graph", "optimal-graph"))
    theirs, hybrid = study.published["recompute_peak_mb"], study.published["hybrid_ome_peak_mb"]
    head = _figures.heading(study), f"{theirs:,.0f} MB", f"{hybrid:,.0f} MB"
    if optimal is None or plain is None:
        return (*head, "", "", ""), ""
    ratio = optimal / theirs
    verdict = "met" if ratio < 1 else f"missed: {ratio:.2f} times as much"
    return (*head, f"~ {optimal:,.0f} MB", f"~ {plain:,.0f} MB", f"{ratio:.2f}"), verdict


def _whole_step(study: Study, name: str) -> float | None:
    """Predicted megabytes of the whole step."""
    record = study.record(name)
    if record is None or record.predicted is None:
        return None
    return (record.predicted.peak_bytes + (record.predicted.fixed_bytes or 0)) / 1e6
