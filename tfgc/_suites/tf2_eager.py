"""Three convolutional networks beside a TF2 eager implementation of 2020 on CPUs.

Its peaks were sampled by memory_profiler at line ends, where what happens inside the backward pass does not show.
"""

from tfgc import _suites

_KNOWN_AS = {"sample_cnn": "sample_cnn", "vgg16": "vgg16", "big_cnn_3x3": "big_cnn(3, 3)"}
_CASES = ("plain-eager", "plain-graph", "optimal-compiled", "optimal-graph", "nested-graph")
_HEADS = ("network, batch", "published", "optimal, eager", "optimal, graph", "nested, graph")
_LEGEND = (
    "Cells are the peak as a share of the plain eager step's and the time as a multiple of it, weights and what was "
    "there before the step left out. Theirs is of the process, sampled at line ends; here it is the allocator's own. "
    "Behind ~ predictions, against plain-graph."
)


def rows(scale):
    """Three networks at their published batches."""
    made = []
    table = _suites.published("tf2_eager_2020")
    for published_as, network in _KNOWN_AS.items():
        plain, theirs = (row for row in table if row["network"] == published_as)
        base = plain["base_mib"]
        share = (theirs["peak_mib"] - (theirs["base_mib"] or base)) / (plain["peak_mib"] - base)
        published = {"share": share, "times": theirs["step_s"] / plain["step_s"]}
        cases = _suites.cases(network, _suites.scaled(plain["batch"], scale), *_CASES, shares={"nested": 0.0}, steps=3)
        made.append(_suites.SuiteRow(cases, published))
    return made


def sheets(results):
    """A row for each network."""
    table = tuple(
        (
            f"{study.network}, {study.batch_size}",
            f"{_suites.percent(study.published['share'], 1)}, x {study.published['times']:.2f}",
            *(_suites.told(study, name, "plain-eager") for name in _CASES[2:]),
        )
        for study in results.studies
    )
    return [_suites.TextTable("Beside a TF2 eager implementation of 2020", _HEADS, table, _LEGEND)]
