"""Cut-off and overhead compared with Optimal Gradient Checkpoint search (Feng & Huang, CVPR 2021), 18 networks.

Their figures are of PyTorch on a GPU, at one replay. `optimal` is the least peak of one replay; `nested` is the plan of
least peak that may split a replay again; `published` is the plan of least work at the published cut-off, at one replay.
"""

from tfgc import _suites
from tfgc._records.measurement import Results, Study
from tfgc._records.table import TextTable

IMAGE_SIZES = {"inception_v3": 300}
# Their peaks are set by one layer, and what plans can do is reach its floor.
SHALLOW = ("alexnet", "vgg11", "vgg13", "vgg16", "vgg19", "resnet18", "resnet34")
WITHOUT_NORMALIZATION = SHALLOW[:5]
# Predictions are off by 5 % in the median.
_MARGIN = 0.95
# Cut-off and overhead.
Figures = tuple[float | None, float | None]
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
_TARGET_HEADS = ("network, batch", "floor", "floor set by", "one replay", "nested", "compiled")
_CUT_OFF_LEGEND = (
    "The part of the plain step's peak that is saved, weights left out: graph against plain-graph (the step in "
    "tf.function), compiled (a loop in Python that calls compiled segments) against plain-eager (GradientTape). 'at "
    "published' is the plan of least work of one replay whose predicted peak is 5 % below the published one, or that "
    "of least peak."
)
_OVERHEAD_LEGEND = "The extra time of a step against the same plain step; predictions count work in {unit}."
_TARGET_LEGEND = (
    "floor: the cut-off of what one layer alone needs, without the allocator's chunks. one replay: the published "
    "cut-off at no more than the published overhead; in shallow networks (to resnet34), the floor. nested: five points "
    "more than published, or half of the way to the floor; in shallow networks, the floor. compiled: ten points more "
    "than published in no more time than plain, for networks with BatchNormalization. Verdicts behind ~ are on "
    "predictions."
)


def rows(scale: float) -> list[_suites.SuiteRow]:
    """The 18 rows of the paper's table."""
    made = []
    for row in _suites.published("ogc_cvpr2021"):
        cases = _suites.cases(
            row["network"],
            _suites.scaled(row["batch"], scale),
            "plain-eager",
            "plain-graph",
            "optimal-graph",
            "nested-graph",
            "published-graph",
            "optimal-compiled",
            "nested-compiled",
            image_size=IMAGE_SIZES.get(row["network"]),
            shares={"nested": 0.0, "published": (_MARGIN * (1 - row["cut_off_pct"] / 100), {"nested": False})},
        )
        published = {key: row[key] for key in ("batch", "cut_off_pct", "overhead_pct")}
        made.append(_suites.SuiteRow(cases, published, front=True))
    return made


def sheets(results: Results) -> list[TextTable]:
    """The targets with a verdict for each, then the cut-offs and the overheads."""
    figures = [OgcFigures(study) for study in results.studies]
    units = sorted({{"s": "seconds timed here", "flop": "flops"}[row.unit] for row in figures if row.unit})
    others = "compared with Feng & Huang, CVPR 2021"
    return [
        _suites.table(
            f"Targets {others}", _TARGET_HEADS, [row.targets() for row in figures], _TARGET_LEGEND, _outcomes(figures)
        ),
        _suites.table(
            f"Cut-off {others}", _HEADS, [row.cells(0) for row in figures], _CUT_OFF_LEGEND, _held(figures, 0)
        ),
        _suites.table(
            f"Overhead {others}", _HEADS, [row.cells(1) for row in figures],
            _OVERHEAD_LEGEND.format(unit=" or ".join(units) or "flops"), _held(figures, 1),
        ),
    ]  # fmt: skip


def _outcomes(figures: list["OgcFigures"]) -> str:
    """Where each target is met, and where it is not."""
    deep, shallow = ([row for row in figures if row.shallow is kind] for kind in (False, True))
    verdicts = {
        "One replay": {row.study.network: row.one_replay() for row in deep},
        "One replay, shallow networks at their floor": {row.study.network: row.one_replay() for row in shallow},
        "Nested": {row.study.network: row.nested() for row in deep},
        "Nested, shallow networks at their floor": {row.study.network: row.nested() for row in shallow},
        "Compiled": {row.study.network: row.compiled() for row in figures},
    }
    return " ".join(filter(None, (_suites.outcome(target, found) for target, found in verdicts.items())))


def _held(figures: list["OgcFigures"], which: int) -> str:
    """In how many networks each case does at least as well as published, by cut-off (0) or overhead (1)."""
    counts = []
    for name, label in _CASES.items():
        pairs = [(row.figures(name)[which], row.published[which]) for row in figures]
        known = [(ours, theirs) for ours, theirs in pairs if ours is not None]
        held = sum(ours <= theirs if which else ours >= theirs for ours, theirs in known)
        counts += [f"{label}: {held} of {len(known)}"] if known else []
    if not counts:
        return ""
    what = "At most the published overhead" if which else "At least the published cut-off"
    return f"{what} in so many networks: {'; '.join(counts)}."


class OgcFigures:
    """The figures of one study, and what is asked of them."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self.cut_off, self.overhead = (study.published[key] / 100 for key in ("cut_off_pct", "overhead_pct"))
        self.published = self.cut_off, self.overhead
        self.shallow = study.network in SHALLOW
        self.ran = any(record.status != "predicted" for record in study.records)
        plain = _suites.record(study, "plain-graph")
        predicted = plain.predicted if plain is not None else None
        self.floor = self.floor_node = self.unit = None
        if predicted is not None:
            self.floor = 1 - predicted.floor_bytes / predicted.plain_bytes
            self.floor_node, self.unit = predicted.floor_node, predicted.unit

    def measured(self, name: str) -> Figures:
        """Cut-off and overhead of a case against the plain one in the same loop; None, None if it was not run."""
        record = _suites.record(self.study, name)
        if record is None or record.status != "ok":
            return None, None
        return record.against(_suites.record(self.study, record.baseline))

    def predicted(self, name: str) -> Figures:
        """The same by prediction, for the step in a graph."""
        shares = _suites.predicted(self.study, name) if name.endswith("-graph") else None
        return (None, None) if shares is None else (1 - shares[0], shares[1] - 1)

    def cells(self, which: int) -> list[str]:
        """A row of cut-offs (0) or overheads (1)."""
        digits = 1 - which
        cells = [_suites.heading(self.study), _suites.percent(self.published[which])]
        for name in _CASES:
            measured = _suites.status(self.study, name) or _suites.percent(self.measured(name)[which], digits)
            cells += [measured, _suites.percent(self.predicted(name)[which], digits)]
        return cells

    def targets(self) -> list[str]:
        """A row of verdicts."""
        return [
            _suites.heading(self.study), _suites.percent(self.floor, 1), self.floor_node or "",
            self.one_replay(), self.nested(), self.compiled(),
        ]  # fmt: skip

    def figures(self, name: str) -> Figures:
        """What was measured; in a study of which nothing was run, what was predicted; None, None else."""
        return self.measured(name) if self.ran else self.predicted(name)

    def one_replay(self) -> str:
        """Whether a plan without nesting does what the paper did, or reaches the floor in a shallow network."""
        if self.shallow:
            return self._at_floor("optimal-graph")
        names = [name for name in ("optimal-graph", "published-graph") if not self._is_nested(name)]
        reached = [(cut, over) for cut, over in map(self.figures, names) if cut is not None and over is not None]
        if not reached:
            return self._why_not("optimal-graph")
        if any(cut_off >= self.cut_off and overhead <= self.overhead for cut_off, overhead in reached):
            return self._sign("met")
        cut_off, overhead = min(reached, key=lambda f: max(0, self.cut_off - f[0]) + max(0, f[1] - self.overhead))
        return self._sign(_missed((self.cut_off - cut_off, "cut-off"), (overhead - self.overhead, "overhead")))

    def nested(self) -> str:
        """Whether nested plans go five points further, or half of the way to the floor; in shallow ones, to it."""
        if self.shallow:
            return self._at_floor("nested-graph")
        if self.floor is None:
            return ""
        goal = min(self.cut_off + 0.05, max(self.cut_off + self.floor, 2 * self.cut_off) / 2, self.floor)
        found = [self.figures(name)[0] for name in ("optimal-graph", "nested-graph", "published-graph")]
        best = max((cut_off for cut_off in found if cut_off is not None), default=None)
        if best is None:
            return self._why_not("nested-graph")
        return self._sign("met" if best >= goal else _missed((goal - best, "cut-off")))

    def compiled(self) -> str:
        """Whether compiled segments save ten points more than published, in no more time than the plain loop."""
        if self.study.network in WITHOUT_NORMALIZATION or not self.ran:
            return ""
        both = map(self.measured, ("optimal-compiled", "nested-compiled"))
        found = [(cut, over) for cut, over in both if cut is not None and over is not None]
        if not found:
            return self._why_not("optimal-compiled")
        goal = self.cut_off + 0.10
        if any(cut_off >= goal and overhead <= 0 for cut_off, overhead in found):
            return "met"
        cut_off, overhead = min(found, key=lambda f: max(0, goal - f[0]) + max(0, f[1]))
        return _missed((goal - cut_off, "cut-off"), (overhead, "time"))

    def _at_floor(self, name: str) -> str:
        """How far a case's peak is above the floor, both as the planner counts, without the allocator's chunks."""
        record = _suites.record(self.study, name)
        if record is None or record.predicted is None or record.status not in ("ok", "predicted"):
            return self._why_not(name)
        assert record.predicted.buffer_bytes is not None
        gap = record.predicted.buffer_bytes / record.predicted.floor_bytes - 1
        return "~ at its floor" if gap < 0.005 else f"~ {_suites.percent(gap, 1)} above its floor"

    def _is_nested(self, name: str) -> bool:
        record = _suites.record(self.study, name)
        return record is not None and any(part.inner for part in record.parts)

    def _why_not(self, name: str) -> str:
        """Why there is no figure: how the case ended; empty if it was not run yet."""
        record = _suites.record(self.study, name)
        return "" if record is None or record.status in ("ok", "predicted") else f"missed: {record.status}"

    def _sign(self, verdict: str) -> str:
        """A verdict, marked if it is on predictions, and with the floor where that is above the published figure."""
        beyond = self.floor is not None and self.cut_off > self.floor and verdict != "met"
        return f"{'' if self.ran else '~ '}{verdict}{'; published is beyond the floor' if beyond else ''}"


def _missed(*excesses: tuple[float, str]) -> str:
    return f"missed: {', '.join(f'{what} by {excess * 100:.1f} points' for excess, what in excesses if excess > 0)}"
