"""Cut-off and overhead compared with Optimal Gradient Checkpoint search (Feng & Huang, CVPR 2021), 18 networks.

Their figures come from PyTorch on a GPU, with one replay. `optimal` is the plan with the lowest peak and one replay;
`nested` is the plan with the lowest peak that may split a replay again; `published` is the plan with the least work at
the published cut-off and one replay.
"""

import operator

from tfgc._records.measurement import Results
from tfgc._records.table import TextTable
from tfgc._suites import _figures, _rows
from tfgc._suites._ogc_targets import OgcFigures
from tfgc._units import format_percent

IMAGE_SIZES = {"inception_v3": 300}
_CASES = {
    "optimal-graph": "optimal, graph",
    "nested-graph": "nested, graph",
    "published-graph": "at published, graph",
    "optimal-compiled": "optimal, compiled",
    "nested-compiled": "nested, compiled",
}
_HEADS = (
    "network, batch",
    "published",
    *(f"{label}{more}" for label in _CASES.values() for more in ("", ", predicted")),
)
_TARGET_HEADS = ("network, batch", "floor", "floor set by", "one replay", "half the overhead", "nested", "compiled")
_CUT_OFF_LEGEND = (
    "The part of the plain step's peak that is saved, weights left out: graph against plain-graph (the step in "
    "tf.function), compiled (a loop in Python that calls compiled segments) against plain-eager (GradientTape). 'at "
    "published' is the plan of least work of one replay whose predicted peak is 5 % below the published one, or that "
    "of least peak."
)
_OVERHEAD_LEGEND = "The extra time of a step against the same plain step{how}; predictions count work in {unit}."
_TARGET_LEGEND = (
    "floor: the cut-off of what one layer alone needs, without the allocator's chunks. one replay: the published "
    "cut-off at no more than the published overhead; in shallow networks (to resnet34), the floor. half the overhead: "
    "the published cut-off at no more than half of the published overhead, in the other networks. nested: five points "
    "more than published, or half of the way to the floor; in shallow networks, the floor. compiled: ten points more "
    "than published in no more time than plain, for networks with BatchNormalization. Verdicts behind ~ are on "
    "predictions."
)


def rows(scale: float) -> list[_rows.SuiteRow]:
    """The 18 rows of the paper's table."""
    made = []
    for row in _rows.published("ogc_cvpr2021"):
        cases = _rows.cases(
            row["network"], _rows.scaled(row["batch"], scale), "plain-eager", "plain-graph", *_CASES,
            image_size=IMAGE_SIZES.get(row["network"]), time_in_turn=True,
            shares={"nested": 0.0, "published": (_rows.MARGIN * (1 - row["cut_off_pct"] / 100), {"nested": False})},
        )  # fmt: skip
        published = {key: row[key] for key in ("batch", "cut_off_pct", "overhead_pct")}
        made.append(_rows.SuiteRow(cases, published, front=True))
    return made


def sheets(results: Results) -> list[TextTable]:
    """The targets with a verdict for each, then the cut-offs and the overheads."""
    figures = [OgcFigures(study) for study in results.studies]
    units = sorted({{"s": "seconds timed here", "flop": "flops"}[row.unit] for row in figures if row.unit})
    others = "compared with Feng & Huang, CVPR 2021"
    targets = [
        (
            _figures.heading(row.study), format_percent(row.floor), row.floor_node or "",
            row.one_replay(), row.half_overhead(), row.nested(), row.compiled(),
        )
        for row in figures
    ]  # fmt: skip
    cut_offs, overheads = ([_cells(row, which) for row in figures] for which in (0, 1))
    overhead_legend = _OVERHEAD_LEGEND.format(unit=" or ".join(units) or "flops", how=_how_timed(figures))
    return [
        _figures.table(f"Targets {others}", _TARGET_HEADS, targets, _TARGET_LEGEND, _outcomes(figures)),
        _figures.table(f"Cut-off {others}", _HEADS, cut_offs, _CUT_OFF_LEGEND, _held(figures, 0)),
        _figures.table(f"Overhead {others}", _HEADS, overheads, overhead_legend, _held(figures, 1)),
    ]


def _how_timed(figures: list[OgcFigures]) -> str:
    """Which networks' steps were timed in turn with plain ones."""
    in_turn = [row.study.network for row in figures if any(r.time_ratio is not None for r in row.study.records)]
    return f", in turn with it in one process ({', '.join(in_turn)}) or each in its own" if in_turn else ""


def _cells(row: OgcFigures, which: int) -> list[str]:
    """A row of cut-offs (0) or overheads (1)."""
    cells = [_figures.heading(row.study), format_percent(row.published[which], ".0f")]
    for name in _CASES:
        ours, predicted = (format_percent(of(name)[which], f".{1 - which}f") for of in (row.measured, row.predicted))
        cells += [_figures.status(row.study, name) or ours, predicted]
    return cells


def _outcomes(figures: list[OgcFigures]) -> str:
    """Where each target is met, and where it is not."""
    deep, shallow = ([row for row in figures if row.shallow is kind] for kind in (False, True))
    verdicts = {
        "One replay": {row.study.network: row.one_replay() for row in deep},
        "One replay, shallow networks at their floor": {row.study.network: row.one_replay() for row in shallow},
        "Half the overhead": {row.study.network: row.half_overhead() for row in deep},
        "Nested": {row.study.network: row.nested() for row in deep},
        "Nested, shallow networks at their floor": {row.study.network: row.nested() for row in shallow},
        "Compiled": {row.study.network: row.compiled() for row in figures},
    }
    return " ".join(filter(None, (_figures.outcome(target, found) for target, found in verdicts.items())))


def _held(figures: list[OgcFigures], which: int) -> str:
    """In how many networks each case does at least as well as published, by cut-off (0) or overhead (1)."""
    pairs = {label: [(r.figures(case)[which], r.published[which]) for r in figures] for case, label in _CASES.items()}
    if which:
        return _figures.counts("At most the published overhead", pairs)
    return _figures.counts("At least the published cut-off", pairs, operator.ge)
