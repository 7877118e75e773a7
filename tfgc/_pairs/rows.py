"""A row of functions that run one after the other on tensors by name."""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

from tfgc._framework import private_api, xla_waits
from tfgc._pairs.reading import Part


class Function(NamedTuple):
    """One of the row: names of what it takes, takes for the last time, and makes."""

    takes: list[str]
    last: Collection[str]
    makes: list[str]
    part: Part

    def run(self, values: dict[str, Any], early: Collection[str] | None = None) -> None:
        """Run it on values by name, to which it adds what it makes; under XLA what is `early` waits for the rest."""
        given = [values[name] for name in self.takes]
        if early is not None and private_api.in_xla():  # which drops the edges of a call, and merges what is equal
            wait = xla_waits.waiting([t for name, t in zip(self.takes, given) if name not in early])
            given = [wait(t) if name in early else t for name, t in zip(self.takes, given)]
        for name in self.last:
            del values[name]
        values.update(zip(self.makes, self.part(given)))


def cut(numbers: Sequence[int], starts: Callable[[int, int], bool]) -> Iterable[list[int]]:
    """Numbers in rows; whether a number starts one is asked of the number before it and itself."""
    row: list[int] = []
    for i in numbers:
        if starts(row[-1] if row else -1, i) and row:
            yield row
            row = []
        row.append(i)
    if row:
        yield row
