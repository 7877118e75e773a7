"""Benchmark suites, one a file, found by listing this folder; each is compared with published figures.

A suite is a module with

- a docstring whose first line says what it shows,
- `rows(scale)`: a list of `SuiteRow` (or `SearchRow`), each published batch (or budget) taken times `scale`,
- `sheets(results)`: a list of `TextTable` made from the `Results` of those rows, however many are there. A cell holds
  one figure, and a summary made from the results says what held and what did not.

Suites hold no TensorFlow: what they describe is run by `tfgc._measure.suite_runner`. The published figures are in
`reference/`.
"""

import csv
import dataclasses
import importlib
import pathlib
import pkgutil
from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any

from tfgc._errors import OptionError, did_you_mean
from tfgc._records.job import Case
from tfgc._records.measurement import Measurement, Study
from tfgc._records.table import TextTable

__all__ = [
    "SearchRow",
    "SuiteRow",
    "TextTable",
    "available",
    "cases",
    "get",
    "heading",
    "measured",
    "outcome",
    "percent",
    "predicted",
    "published",
    "record",
    "scaled",
    "shares",
    "status",
    "table",
    "times",
]

REFERENCE = pathlib.Path(__file__).parent / "reference"


@dataclasses.dataclass(frozen=True)
class SuiteRow:
    """One network at one batch size.

    Attributes:
        cases: A tuple of `Case`, the plain ones first.
        published: What others published about it, by name.
        front: Whether to compute the Pareto front, too.
        predicted: Whether the cases are only predicted, even where others are run.
    """

    cases: tuple[Case, ...]
    published: dict[str, Any] = dataclasses.field(default_factory=dict)
    front: bool = False
    predicted: bool = False

    @property
    def network(self) -> str:
        """What is trained."""
        return self.cases[0].network

    @property
    def batch_size(self) -> int:
        """Samples in a batch."""
        return self.cases[0].batch_size


@dataclasses.dataclass(frozen=True)
class SearchRow:
    """The largest batch of one network in a budget, in place of a row of cases.

    Attributes:
        network: Its name.
        budget_bytes: What the whole step may use.
        published: What others published about it, by name.
    """

    network: str
    budget_bytes: int
    published: dict[str, Any] = dataclasses.field(default_factory=dict)
    cases: tuple[Case, ...] = ()


def available() -> list[str]:
    """Names of the suites, sorted, as people write them.

    >>> "resnet-depth" in available()
    True
    """
    return sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(__path__))


def get(suite: str) -> ModuleType:
    """The module of a suite.

    Raises:
        OptionError: For an unknown name, with near ones.
    """
    if suite not in available():
        raise OptionError(
            f"there is no suite {suite!r}{did_you_mean(suite, available())} (there are: {', '.join(available())})"
        )
    return importlib.import_module(f"{__name__}.{suite.replace('-', '_')}")


def published(name: str) -> list[dict[str, Any]]:
    """The rows of a reference table, numbers as such."""
    with open(REFERENCE / f"{name}.csv", newline="") as file:
        return [{key: _number(value) for key, value in row.items()} for row in csv.DictReader(file)]


def _number(text: str) -> int | float | str:
    try:
        return int(text)
    except ValueError:
        try:
            return float(text)
        except ValueError:
            return text


def scaled(batch_size: int, scale: float) -> int:
    """A published batch times `scale`, at least one sample.

    >>> scaled(64, 0.25), scaled(2, 0.1)
    (16, 1)
    """
    return max(1, round(batch_size * scale))


def cases(
    network: str, batch_size: int, *names: str, image_size: int | None = None,
    shares: Mapping[str, float | tuple[float, dict]] | None = None, **common: Any,
) -> tuple[Case, ...]:  # fmt: skip
    """The cases that `names` name, such as `plain-eager`, `sqrt:8-graph`, or a name of `shares` and its mode.

    `shares` maps names to parts of the plain step's peak, as in `Case.target_ratio`, or pairs of a part and options.
    """
    made = []
    for name in names:
        how, _, mode = name.rpartition("-")
        choice: dict[str, Any] = {"case": how}
        if shares and how in shares:
            share = shares[how]
            choice["target_ratio"], choice["options"] = share if isinstance(share, tuple) else (share, {})
        elif how != "plain":
            strategy, _, count = how.partition(":")
            options = {"segments": int(count)} if count else {}
            choice = {"case": f"{strategy}({count})" if count else how, "strategy": strategy, "options": options}
        made.append(Case(network, (network, image_size), mode=mode, batch_size=batch_size, **choice, **common))
    return tuple(made)


def record(study: Study, name: str) -> Measurement | None:
    """The record of a study by its name, such as `plain-graph`; None if it is not there."""
    return next((r for r in study.records if r.name == name), None)


def measured(study: Study, name: str, plain: str = "plain-graph") -> tuple[float, float] | None:
    """Measured peak and time of a case as multiples of a plain case's; None if either was not run."""
    ours, baseline = record(study, name), record(study, plain)
    if ours is None or baseline is None or {ours.status, baseline.status} != {"ok"}:
        return None
    cut_off, overhead = ours.against(baseline)
    return None if cut_off is None or overhead is None else (1 - cut_off, 1 + overhead)


def predicted(study: Study, name: str) -> tuple[float, float] | None:
    """Predicted peak and work of a case as multiples of plain-graph's, the only plain case that can be predicted."""
    ours, graph = record(study, name), record(study, "plain-graph")
    if ours is None or graph is None or ours.predicted is None or graph.predicted is None:
        return None
    return ours.predicted.peak_bytes / graph.predicted.peak_bytes, 1 + ours.predicted.overhead


def shares(study: Study, name: str) -> tuple[float, float] | None:
    """What was measured of a case, or predicted where it was not to be run."""
    ours = record(study, name)
    return predicted(study, name) if ours is not None and ours.status == "predicted" else measured(study, name)


def status(study: Study, name: str) -> str:
    """How a case ended that has no figures, such as `oom`; empty for all others."""
    ours = record(study, name)
    return "" if ours is None or ours.status in ("ok", "predicted") else ours.status


def heading(study: Study) -> str:
    """The first cell of a row, such as `resnet50, 16`."""
    return f"{study.network}, {study.batch_size}"


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


def percent(ratio: float | None, digits: int = 0) -> str:
    """A share as text, empty for None.

    >>> percent(0.1234), percent(-0.5, 1), percent(None)
    ('12 %', '-50.0 %', '')
    """
    return "" if ratio is None else f"{ratio * 100:.{digits}f} %"


def times(ratio: float | None) -> str:
    """A multiple as text, empty for None.

    >>> times(1.234), times(None)
    ('x 1.23', '')
    """
    return "" if ratio is None else f"x {ratio:.2f}"
