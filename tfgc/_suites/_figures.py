"""What the tables of suites are made of: the figures of a study beside those of its plain case, as numbers and as text.

A pair of figures is a peak and a time, both as multiples of the plain case's; where one of them is meant, 0 stands for
the peak and 1 for the time.
"""

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence

from tfgc._records.measurement import Study
from tfgc._records.table import TextTable
from tfgc._units import format_percent


def measured(study: Study, name: str, plain: str = "plain-graph") -> tuple[float, float] | None:
    """The figures of a case as measured; None if it or the plain case was not run."""
    ours, baseline = study.record(name), study.record(plain)
    if ours is None or baseline is None or {ours.status, baseline.status} != {"ok"}:
        return None
    cut_off, overhead = ours.against(baseline)
    return None if cut_off is None or overhead is None else (1 - cut_off, 1 + overhead)


def predicted(study: Study, name: str) -> tuple[float, float] | None:
    """Predicted peak and work as multiples of plain-graph's, the only plain case that can be predicted."""
    ours, graph = study.record(name), study.record("plain-graph")
    if ours is None or graph is None or ours.predicted is None or graph.predicted is None:
        return None
    return ours.predicted.peak_bytes / graph.predicted.peak_bytes, 1 + ours.predicted.overhead


def known(study: Study, name: str) -> tuple[float, float] | None:
    """What was measured of a case, or predicted where it was not to be run."""
    ours = study.record(name)
    return predicted(study, name) if ours is not None and ours.status == "predicted" else measured(study, name)


def status(study: Study, name: str) -> str:
    """How a case ended that has no figures, such as `oom`; empty for all others."""
    ours = study.record(name)
    return "" if ours is None or ours.status in ("ok", "predicted") else ours.status


def heading(study: Study) -> str:
    """The first cell of a row, such as `resnet50, 16`."""
    return f"{study.network}, {study.batch_size}"


def cells(study: Study, names: Iterable[str], which: int, plain: str = "plain-graph") -> list[str]:
    """The peaks (0) or times (1) of cases: for each what was measured, or how it ended, and what was predicted."""
    found = []
    for name in names:
        found.append(status(study, name) or text(measured(study, name, plain), which))
        found.append(text(predicted(study, name), which))
    return found


def text(figures: tuple[float, float] | None, which: int) -> str:
    """The peak (0) or the time (1) of a pair; empty for None."""
    if figures is None:
        return ""
    return times(figures[1]) if which else format_percent(figures[0])


def times(ratio: float | None) -> str:
    """A multiple as text, empty for None.

    >>> times(1.234), times(None)
    ('x 1.23', '')
    """
    return "" if ratio is None else f"x {ratio:.2f}"


def table(
    title: str, heads: Sequence[str], rows: Iterable[Sequence[str]], caption: str = "", summary: str = ""
) -> TextTable:
    """A table without the columns that are empty in every row.

    >>> table("t", ("a", "b", "c"), [("1", "", "2"), ("3", "", "")]).heads
    ('a', 'c')
    """
    rows = list(rows)
    kept = [i for i in range(len(heads)) if not rows or any(row[i] for row in rows)]
    return TextTable(
        title, tuple(heads[i] for i in kept), tuple(tuple(row[i] for i in kept) for row in rows), caption, summary
    )


def verdict(*excesses: tuple[float, str]) -> str:
    """Whether nothing is above its goal, from pairs of an excess and what it is of.

    >>> verdict((-0.1, "share")), verdict((0.03, "share"), (-1.0, "time"))
    ('met', 'missed: share by 3.0 points')
    """
    missed = ", ".join(f"{what} by {excess * 100:.1f} points" for excess, what in excesses if excess > 0)
    return f"missed: {missed}" if missed else "met"


def outcome(target: str, verdicts: Mapping[str, str]) -> str:
    """A sentence that says where a target is met and where, and by how much, it is not.

    >>> outcome("Half the peak", {"a": "met", "b": "~ met", "c": "missed: cut-off by 3.0 points", "d": ""})
    'Half the peak: met in 2 of 3 networks, missed in c (cut-off by 3.0 points).'
    """
    judged = {network: verdict.removeprefix("~ ") for network, verdict in verdicts.items() if verdict}
    missed = [f"{n} ({v.removeprefix('missed: ')})" for n, v in judged.items() if v not in ("met", "at its floor")]
    if not judged:
        return ""
    others = f", missed in {', '.join(missed)}" if missed else ""
    return f"{target}: met in {len(judged) - len(missed)} of {len(judged)} networks{others}."


def counts(
    goal: str,
    pairs: Mapping[str, Iterable[tuple[float | None, float | None]]],
    holds: Callable[[float, float], bool] = operator.le,
) -> str:
    """A sentence that says in how many networks each case meets a goal, from pairs of our figure and the published one.

    >>> counts("No larger share", {"optimal": [(0.5, 0.6), (0.7, 0.6), (None, 0.6)], "nested": []})
    'No larger share, by number of networks: optimal: 1 of 2.'
    """
    found = []
    for label, both in pairs.items():
        held = [holds(ours, theirs) for ours, theirs in both if ours is not None and theirs is not None]
        found += [f"{label}: {sum(held)} of {len(held)}"] if held else []
    return f"{goal}, by number of networks: {'; '.join(found)}." if found else ""
