"""What a suite asks to run, and the published figures that it is compared with."""

import csv
import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

from tfgc._records.job import Case

# Of a share that is to be met: predictions are off by 5 % in the median.
MARGIN = 0.95
_REFERENCE = pathlib.Path(__file__).parent / "reference"


@dataclasses.dataclass(frozen=True)
class SuiteRow:
    """One network at one batch size: its cases, the plain ones first, and what others published about it, by name."""

    cases: tuple[Case, ...]
    published: dict[str, Any] = dataclasses.field(default_factory=dict)
    front: bool = False  # whether to compute the Pareto front as well
    predicted: bool = False  # whether the cases are only predicted, even where others are run

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
    """The largest batch of one network in a budget of the whole step, instead of a row of cases."""

    network: str
    budget_bytes: int
    published: dict[str, Any] = dataclasses.field(default_factory=dict)
    cases: tuple[Case, ...] = ()


def published(name: str) -> list[dict[str, Any]]:
    """The rows of a reference table, numbers as such."""
    with open(_REFERENCE / f"{name}.csv", newline="") as file:
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
