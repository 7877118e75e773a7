"""Three convolutional networks compared with a TF2 eager implementation of 2020 on CPUs.

Its peaks were sampled by memory_profiler at line ends, where what happens inside the backward pass does not show.
"""

from tfgc._records.measurement import Results, Study
from tfgc._records.table import TextTable
from tfgc._suites import _figures, _rows

_KNOWN_AS = {"sample_cnn": "sample_cnn", "vgg16": "vgg16", "big_cnn_3x3": "big_cnn(3, 3)"}
_CASES = ("plain-eager", "plain-graph", "optimal-compiled", "optimal-graph", "nested-graph")
_HEADS = (
    "network, batch",
    "published",
    *(name.replace("-", ", ") + more for name in _CASES[2:] for more in ("", ", predicted")),
)
_PEAK_LEGEND = (
    "The peak as a share of the plain eager step's, weights and what was there before the step left out. The published "
    "peak is of the process, sampled at line ends; here it is the allocator's own. Predictions are shares of "
    "plain-graph's."
)
_TIME_LEGEND = "The time as a multiple of the plain eager step's; predictions are multiples of plain-graph's work."


def rows(scale: float) -> list[_rows.SuiteRow]:
    """Three networks at their published batches."""
    made = []
    table = _rows.published("tf2_eager_2020")
    for published_as, network in _KNOWN_AS.items():
        plain, theirs = (row for row in table if row["network"] == published_as)
        base = plain["base_mib"]
        share = (theirs["peak_mib"] - (theirs["base_mib"] or base)) / (plain["peak_mib"] - base)
        cases = _rows.cases(network, _rows.scaled(plain["batch"], scale), *_CASES, shares={"nested": 0.0}, steps=3)
        made.append(_rows.SuiteRow(cases, {"share": share, "times": theirs["step_s"] / plain["step_s"]}))
    return made


def sheets(results: Results) -> list[TextTable]:
    """A table of peaks and one of times, a row for each network."""
    return [
        _figures.table(
            f"{title} compared with a TF2 eager implementation of 2020",
            _HEADS,
            [_row(study, which) for study in results.studies],
            legend,
            summary=" ".join(_summary(study, which) for study in results.studies),
        )
        for which, title, legend in ((0, "Peak", _PEAK_LEGEND), (1, "Time", _TIME_LEGEND))
    ]


def _published(study: Study) -> tuple[float, float]:
    return study.published["share"], study.published["times"]


def _row(study: Study, which: int) -> list[str]:
    ours = _figures.cells(study, _CASES[2:], which, "plain-eager")
    return [_figures.heading(study), _figures.text(_published(study), which), *ours]


def _summary(study: Study, which: int) -> str:
    """The least peak or time of a network, and the published one."""
    found = {name: _figures.measured(study, name, "plain-eager") for name in _CASES[2:]}
    known = {name: figures for name, figures in found.items() if figures is not None}
    if not known:
        return ""
    best = min(known, key=lambda name: known[name][which])
    more = "more" if known[best][which] > _published(study)[which] else "no more"
    ours, theirs = (_figures.text(figures, which) for figures in (known[best], _published(study)))
    return f"{study.network}: at best {ours} ({best}), {more} than the published {theirs}."
