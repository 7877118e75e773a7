"""Cut-off and overhead beside Optimal Gradient Checkpoint search (Feng & Huang, CVPR 2021), 18 networks.

Their figures are of PyTorch on a GPU, at one replay. `optimal` is the least peak of one replay; `nested` is the plan of
least peak that may split a replay again; `published` is the plan of least work at the published cut-off, at one replay.
"""

from tfgc import _suites

IMAGE_SIZES = {"inception_v3": 300}
# Their peaks are set by one layer, and what plans can do is reach its floor.
SHALLOW = ("alexnet", "vgg11", "vgg13", "vgg16", "vgg19", "resnet18", "resnet34")
WITHOUT_NORMALIZATION = SHALLOW[:5]
# Predictions are off by 5 % in the median.
_MARGIN = 0.95
_HEADS = (
    "network, batch", "published", "optimal, graph", "nested, graph", "at published, graph", "optimal, eager",
    "nested, eager", "floor, set by", "one replay", "nested", "eager",
)  # fmt: skip
_LEGEND = (
    "Cells are cut-off, overhead: the part of the plain step's peak that is saved, weights left out, and the time "
    "that comes on top; graph against plain-graph (the step in tf.function), eager against plain-eager "
    "(GradientTape). Behind ~ what was predicted, its overhead counted in {unit}. 'at published' is the plan of least"
    " work of one replay whose predicted peak is 5 % below the published one, or that of least peak. floor: the cut-"
    "off of what one layer needs by itself, without the allocator's chunks. 'one replay' asks for the published cut-"
    "off at no more than the published overhead, in shallow networks (to resnet34) for the floor; 'nested' for five "
    "points more, or half of the way to the floor, in shallow ones for the floor; 'eager' for ten points more than "
    "published in no more time than plain, of networks with BatchNormalization."
)


def rows(scale):
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


def sheets(results):
    """The table with a verdict for each row and target."""
    found = [(study, Row(study)) for study in results.studies]
    unit = (
        " or ".join(sorted({{"s": "seconds timed here", "flop": "flops"}[row.unit] for _, row in found if row.unit}))
        or "flops"
    )
    table = tuple(
        (
            f"{study.network}, {study.batch_size}",
            f"{row.cut_off * 100:.0f} %, {row.overhead * 100:.0f} %",
            *map(row.told, ("optimal-graph", "nested-graph", "published-graph", "optimal-compiled", "nested-compiled")),
            f"{_suites.percent(row.floor, 1)}, {row.floor_node}" if row.floor is not None else "",
            row.one_replay(),
            row.nested(),
            row.eager(),
        )
        for study, row in found
    )
    return [_suites.TextTable("Beside Feng & Huang, CVPR 2021", _HEADS, table, _LEGEND.format(unit=unit))]


class Row:
    """The figures of one study, and what is asked of them."""

    def __init__(self, study):
        self.study = study
        self.cut_off, self.overhead = (study.published[key] / 100 for key in ("cut_off_pct", "overhead_pct"))
        self.shallow = study.network in SHALLOW
        self.ran = any(record.status != "predicted" for record in study.records)
        plain = _suites.record(study, "plain-graph")
        predicted = plain.predicted if plain is not None else None
        self.floor = self.floor_node = self.unit = None
        if predicted is not None:
            self.floor = 1 - predicted.floor_bytes / predicted.plain_bytes
            self.floor_node, self.unit = predicted.floor_node, predicted.unit

    def measured(self, name):
        """Cut-off and overhead of a case against the plain one of its mode; None, None if it was not run."""
        record = _suites.record(self.study, name)
        if record is None or record.status != "ok":
            return None, None
        return record.against(_suites.record(self.study, record.baseline))

    def predicted(self, name):
        """The same by prediction, of the step in a graph."""
        record, plain = (_suites.record(self.study, which) for which in (name, "plain-graph"))
        if record is None or record.predicted is None or record.mode != "graph":
            return None, None
        return 1 - record.predicted.peak_bytes / plain.predicted.peak_bytes, record.predicted.overhead

    def told(self, name):
        """A cell."""
        cells = []
        record = _suites.record(self.study, name)
        if record is not None and record.status not in ("ok", "predicted"):
            return record.status
        for sign, (cut_off, overhead) in (("", self.measured(name)), ("~ ", self.predicted(name))):
            if cut_off is not None:
                more = "" if overhead is None else f", {_suites.percent(overhead)}"
                cells.append(f"{sign}{_suites.percent(cut_off, 1)}{more}")
        return " ".join(cells)

    def figures(self, name):
        """What was measured; in a study of which nothing was run, what was predicted; None, None else."""
        return self.measured(name) if self.ran else self.predicted(name)

    def one_replay(self):
        """Whether a plan without nesting does what the paper did, or reaches the floor in a shallow network."""
        if self.shallow:
            return self._at_floor("optimal-graph")
        names = [name for name in ("optimal-graph", "published-graph") if not self._is_nested(name)]
        reached = [figures for figures in map(self.figures, names) if figures[0] is not None]
        if not reached:
            return self._why_not("optimal-graph")
        if any(cut_off >= self.cut_off and overhead <= self.overhead for cut_off, overhead in reached):
            return self._sign("met")
        cut_off, overhead = min(reached, key=lambda f: max(0, self.cut_off - f[0]) + max(0, f[1] - self.overhead))
        return self._sign(_missed((self.cut_off - cut_off, "cut-off"), (overhead - self.overhead, "overhead")))

    def nested(self):
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

    def eager(self):
        """Whether eager calls save ten points more than published, in no more time than the plain loop."""
        if self.study.network in WITHOUT_NORMALIZATION or not self.ran:
            return ""
        both = map(self.measured, ("optimal-compiled", "nested-compiled"))
        found = [figures for figures in both if figures[0] is not None]
        if not found:
            return self._why_not("optimal-compiled")
        goal = self.cut_off + 0.10
        if any(cut_off >= goal and overhead <= 0 for cut_off, overhead in found):
            return "met"
        cut_off, overhead = min(found, key=lambda f: max(0, goal - f[0]) + max(0, f[1]))
        return _missed((goal - cut_off, "cut-off"), (overhead, "time"))

    def _at_floor(self, name):
        """How far a case's peak is above the floor, both as the planner counts, without the allocator's chunks."""
        record = _suites.record(self.study, name)
        if record is None or record.predicted is None or record.status not in ("ok", "predicted"):
            return self._why_not(name)
        gap = record.predicted.buffer_bytes / record.predicted.floor_bytes - 1
        return "~ at its floor" if gap < 0.005 else f"~ {_suites.percent(gap, 1)} above its floor"

    def _is_nested(self, name):
        record = _suites.record(self.study, name)
        return record is not None and any(part.inner for part in record.parts)

    def _why_not(self, name):
        """Why there is no figure: the case ended otherwise, or was not run yet."""
        record = _suites.record(self.study, name)
        return "" if record is None or record.status in ("ok", "predicted") else f"missed: {record.status}"

    def _sign(self, verdict):
        """A verdict, marked if it is on predictions; the floor tells where the published figure is out of reach."""
        beyond = self.floor is not None and self.cut_off > self.floor and verdict != "met"
        return f"{'' if self.ran else '~ '}{verdict}{' (published is beyond the floor)' if beyond else ''}"


def _missed(*excesses):
    told = [f"{what} by {excess * 100:.1f} points" for excess, what in excesses if excess > 0]
    return f"missed: {', '.join(told)}"
