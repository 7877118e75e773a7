"""Benchmark suites, one a file, found by listing this folder; each stands beside figures that others published.

A suite is a module with

- a docstring whose first line says what it shows,
- `rows(scale)`: a list of `SuiteRow` (or `SearchRow`), each published batch (or budget) taken times `scale`,
- `sheets(results)`: a list of `TextTable` made from the `Results` of those rows, however many are there.

Suites hold no TensorFlow: what they describe is run by `tfgc._measure.suite_runner`. The published figures are in
`reference/`.
"""

import csv
import dataclasses
import importlib
import pathlib
import pkgutil

from tfgc._errors import OptionError, did_you_mean
from tfgc._records.job import Case
from tfgc._records.table import TextTable

__all__ = [
    "SearchRow",
    "SuiteRow",
    "TextTable",
    "available",
    "cases",
    "get",
    "percent",
    "published",
    "record",
    "scaled",
    "shares",
    "told",
]

REFERENCE = pathlib.Path(__file__).parent / "reference"


@dataclasses.dataclass(frozen=True)
class SuiteRow:
    """One network at one batch size.

    Attributes:
        cases: A tuple of `Case`, the plain ones first.
        published: What others published about it, by name.
        front: Whether the least work for each peak is wanted, too.
        predicted: Whether the cases are only predicted, even where others are run.
    """

    cases: tuple
    published: dict = dataclasses.field(default_factory=dict)
    front: bool = False
    predicted: bool = False

    @property
    def network(self):
        """What is trained."""
        return self.cases[0].network

    @property
    def batch_size(self):
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
    published: dict = dataclasses.field(default_factory=dict)
    cases: tuple = ()


def available():
    """Names of the suites, sorted, as people write them.

    >>> "resnet-depth" in available()
    True
    """
    return sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(__path__))


def get(suite):
    """The module of a suite.

    Raises:
        OptionError: For an unknown name, with near ones.
    """
    if suite not in available():
        raise OptionError(
            f"there is no suite {suite!r}{did_you_mean(suite, available())} (there are: {', '.join(available())})"
        )
    return importlib.import_module(f"{__name__}.{suite.replace('-', '_')}")


def published(table):
    """The rows of a reference table, numbers as such."""
    with open(REFERENCE / f"{table}.csv", newline="") as file:
        return [{key: _number(value) for key, value in row.items()} for row in csv.DictReader(file)]


def _number(text):
    try:
        return int(text)
    except ValueError:
        try:
            return float(text)
        except ValueError:
            return text


def scaled(batch_size, scale):
    """A published batch times `scale`, at least one sample.

    >>> scaled(64, 0.25), scaled(2, 0.1)
    (16, 1)
    """
    return max(1, round(batch_size * scale))


def cases(network, batch_size, *names, image_size=None, shares=None, **common):
    """The cases that `names` name, such as `plain-eager`, `sqrt:8-graph`, or a name of `shares` and its mode.

    `shares` maps names to parts of the plain step's peak, as in `Case.share`, or pairs of a part and options.
    """
    made = []
    for name in names:
        how, _, mode = name.rpartition("-")
        choice = {"case": how}
        if how in (shares or {}):
            share = shares[how]
            choice["share"], choice["options"] = share if isinstance(share, tuple) else (share, {})
        elif how != "plain":
            strategy, _, count = how.partition(":")
            options = {"segments": int(count)} if count else {}
            choice = {"case": f"{strategy}({count})" if count else how, "strategy": strategy, "options": options}
        made.append(Case(network, (network, image_size), mode=mode, batch_size=batch_size, **choice, **common))
    return tuple(made)


def record(study, name):
    """The record of a study by its name, such as `plain-graph`; None if it is not there."""
    return next((r for r in study.records if r.name == name), None)


def shares(study, name, kind=None, plain="plain-graph"):
    """Peak and time of a case as shares of the plain step's; None if it was not run.

    `kind` is `ok` for what was measured, `predicted` for what was foreseen, always against plain-graph, since plain
    eager calls cannot be predicted; None for what the case is.
    """
    ours, baseline, graph = (record(study, which) for which in (name, plain, "plain-graph"))
    statuses = {r and r.status for r in (ours, baseline)}
    if kind != "predicted" and statuses == {"ok"}:
        cut_off, overhead = ours.against(baseline)
        return 1 - cut_off, 1 + overhead
    foreseen = kind == "predicted" or (kind is None and ours is not None and ours.status == "predicted")
    if foreseen and ours and graph and ours.predicted and graph.predicted:
        return ours.predicted.peak_bytes / graph.predicted.peak_bytes, 1 + ours.predicted.overhead
    return None


def told(study, name, plain="plain-graph"):
    """A cell: measured share and multiple, then behind ~ the predicted ones."""
    ours = record(study, name)
    if ours is not None and ours.status not in ("ok", "predicted"):
        return ours.status
    found = [(sign, shares(study, name, kind, plain)) for sign, kind in (("", "ok"), ("~ ", "predicted"))]
    return " ".join(f"{sign}{percent(f[0], 1)}, x {f[1]:.2f}" for sign, f in found if f)


def percent(ratio, digits=0):
    """A share as text, empty for None.

    >>> percent(0.1234), percent(-0.5, 1), percent(None)
    ('12 %', '-50.0 %', '')
    """
    return "" if ratio is None else f"{ratio * 100:.{digits}f} %"
