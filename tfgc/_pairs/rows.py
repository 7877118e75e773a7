"""A row of functions that run one after the other on tensors by name."""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

from tfgc._framework import private_api, xla
from tfgc._pairs import joined
from tfgc._pairs.reading import Part
from tfgc._rewrite import liveness
from tfgc._step.step import Step, Tensor

# Where a function holds what no operation reads any more, and needs more than this part of the step's peak, another one
# begins: kernels take room of their own. A share of it is too little for that.
_CLOSE, _LITTLE = 0.8, 0.02


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
            wait = xla.waiting([t for name, t in zip(self.takes, given) if name not in early])
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


def split(step: Step, parts: Iterable[Sequence[int]]) -> Iterable[list[int]]:
    """Rows in more rows, where one would need more than the step does: what a function takes lives to its end.

    What oneDNN joins stays together.
    """
    at, last, during = step.at, joined.until(step), liveness.timeline(step)
    kept, most = {step.buffer(t) for t in step.results}, int(_CLOSE * max(during, default=0))
    for row in parts:
        part, taken, until = list[int](), dict[Tensor, int](), -1  # what it takes, and where that is read last
        for i in row:
            is_in_place = step.ops[i].type in liveness.IN_PLACE and bool(step.makes[i])
            reads = {b: at[step.readers[b][-1]] for b in step.reads[i] if b not in kept}
            ended = [b for b, end in (taken | reads).items() if b in taken and end < at[i] + is_in_place]
            dead = sum(map(step.size, ended))
            if part and at[i] > until and dead > _LITTLE * most and during[at[i]] + dead > most:
                yield part
                part, taken = [], {}
            inside = set(part)
            taken |= {b: end for b, end in reads.items() if b[0] not in inside}
            part.append(i)
            until = max(until, last[i])
        yield part
