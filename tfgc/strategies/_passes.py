"""The passes of nested plans, and the ways to begin one; see `_nested_plans`."""

import dataclasses
from typing import NamedTuple


class Pass(NamedTuple):
    """All that the cost of a pass depends on.

    Attributes:
        start, end: Its positions.
        held: Those of its inputs that are held for others.
        first: Whether it is part of the first pass, with the loss at its end, and not of a replay.
        takes_over: Whether it is a replay that is not split again, and takes over small results of the first run.
        selective: Whether that takes over products with weights, too.
    """

    start: int
    end: int
    held: frozenset[int]
    first: bool
    takes_over: bool = False
    selective: bool = False


@dataclasses.dataclass(slots=True)
class Option:
    """One way to begin a pass.

    Attributes:
        need: Most bytes at once meanwhile, on top of what is held.
        added: Bytes that stay until the rest of the pass is done.
        rest: The row of the pass over the rest.
        replay: The row of the pass over the segment itself; None if its nodes are kept.
        work: Work of the nodes that run.
        stop: Position where the rest begins.
        results: Bytes of small results, among those added, that the replay takes over; None if it takes over nothing.
        selective: Whether the replay takes over products with weights, which are among those added.
    """

    need: int
    added: int
    rest: int
    replay: int | None
    work: float
    stop: int
    results: int | None = None
    selective: bool = False


class Replayed(NamedTuple):
    """A segment that is run again, where some of its inputs are held for others.

    Attributes:
        inputs: The buffers that it reads from outside.
        stored: Those of them that nobody else holds.
        bytes: What these take.
        inside: The others.
        row: The row of the pass over it, which may run parts of it once more.
    """

    inputs: frozenset[int]
    stored: frozenset[int]
    bytes: int
    inside: frozenset[int]
    row: int
