"""The targets of the suite `ogc`: for each, whether a network meets it, and by how much not."""

from collections.abc import Iterable

from tfgc._records.measurement import Study
from tfgc._suites import _figures
from tfgc._units import format_percent

# Their peaks are set by one layer, and what plans can do is reach its floor.
SHALLOW = ("alexnet", "vgg11", "vgg13", "vgg16", "vgg19", "resnet18", "resnet34")
WITHOUT_NORMALIZATION = SHALLOW[:5]
# Cut-off and overhead.
Figures = tuple[float | None, float | None]


class OgcFigures:
    """The figures of one study, and what is asked of them."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self.cut_off, self.overhead = (study.published[key] / 100 for key in ("cut_off_pct", "overhead_pct"))
        self.published = self.cut_off, self.overhead
        self.shallow = study.network in SHALLOW
        self.ran = any(record.status != "predicted" for record in study.records)
        plain = study.record("plain-graph")
        predicted = plain.predicted if plain is not None else None
        self.floor = self.floor_node = self.unit = None
        if predicted is not None:
            self.floor = 1 - predicted.floor_bytes / predicted.plain_bytes
            self.floor_node, self.unit = predicted.floor_node, predicted.unit

    def measured(self, name: str) -> Figures:
        """Cut-off and overhead of a case against the plain one in the same loop; None, None if it was not run."""
        record = self.study.record(name)
        if record is None or record.status != "ok":
            return None, None
        return record.against(self.study.record(record.baseline))

    def predicted(self, name: str) -> Figures:
        """The same by prediction, for the step in a graph."""
        shares = _figures.predicted(self.study, name) if name.endswith("-graph") else None
        return (None, None) if shares is None else (1 - shares[0], shares[1] - 1)

    def figures(self, name: str) -> Figures:
        """What was measured; in a study of which nothing was run, what was predicted; None, None else."""
        return self.measured(name) if self.ran else self.predicted(name)

    def one_replay(self) -> str:
        """Whether a plan without nesting does what the paper did, or reaches the floor in a shallow network."""
        return self._at_floor("optimal-graph") if self.shallow else self._at_published_cut_off(self.overhead)

    def half_overhead(self) -> str:
        """Whether a plan without nesting reaches the published cut-off at half of the overhead, in deep networks."""
        return "" if self.shallow else self._at_published_cut_off(self.overhead / 2)

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
        return self._sign(_figures.verdict((goal - best, "cut-off")))

    def compiled(self) -> str:
        """Whether compiled segments save ten points more than published, in no more time than the plain loop."""
        if self.study.network in WITHOUT_NORMALIZATION or not self.ran:
            return ""
        found = map(self.measured, ("optimal-compiled", "nested-compiled"))
        return _best(found, self.cut_off + 0.10, 0, "time") or self._why_not("optimal-compiled")

    def _at_published_cut_off(self, overhead: float) -> str:
        """Whether a plan without nesting has the published cut-off at no more than `overhead`."""
        names = [name for name in ("optimal-graph", "published-graph") if not self._is_nested(name)]
        verdict = _best(map(self.figures, names), self.cut_off, overhead, "overhead")
        return self._sign(verdict) if verdict else self._why_not("optimal-graph")

    def _at_floor(self, name: str) -> str:
        """How far a case's peak is above the floor, both as the planner counts, without the allocator's chunks."""
        record = self.study.record(name)
        if record is None or record.predicted is None or record.status not in ("ok", "predicted"):
            return self._why_not(name)
        assert record.predicted.buffer_bytes is not None
        gap = record.predicted.buffer_bytes / record.predicted.floor_bytes - 1
        return "~ at its floor" if gap < 0.005 else f"~ {format_percent(gap)} above its floor"

    def _is_nested(self, name: str) -> bool:
        record = self.study.record(name)
        return record is not None and any(part.inner for part in record.parts)

    def _why_not(self, name: str) -> str:
        """Why there is no figure: how the case ended; empty if it was not run yet."""
        record = self.study.record(name)
        return "" if record is None or record.status in ("ok", "predicted") else f"missed: {record.status}"

    def _sign(self, verdict: str) -> str:
        """A verdict, marked if it is on predictions, and with the floor where that is above the published figure."""
        beyond = self.floor is not None and self.cut_off > self.floor and verdict != "met"
        return f"{'' if self.ran else '~ '}{verdict}{'; published is beyond the floor' if beyond else ''}"


def _best(found: Iterable[Figures], cut_off: float, overhead: float, what: str) -> str:
    """The verdict on the case that misses a cut-off and an overhead by least; empty if none has both figures."""
    excesses = [(cut_off - cut, over - overhead) for cut, over in found if cut is not None and over is not None]
    if not excesses:
        return ""
    cut, over = min(excesses, key=lambda pair: max(0, pair[0]) + max(0, pair[1]))
    return _figures.verdict((cut, "cut-off"), (over, what))
