"""The states that a search for plans without nesting comes to, and which of them it goes on from."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np


class State(NamedTuple):
    """A position, and the buffers that are held there, as the bits of a number."""

    position: int
    held: int


class States:
    """States by number, each with the least bytes held there, and the least peak and work of the ways to it.

    Only plans that stay under a limit count. A plan that stores on the host may hold less than is known.
    """

    def __init__(self, sizes: Sequence[int], positions: int, host: bool) -> None:
        self.all: list[State] = []
        self.held: list[float] = []
        self.left_out = 0  # so many were not gone on from
        self._sizes, self._host = sizes, host
        self._peak: list[float] = []
        self._work: list[float] = []
        self._at: list[dict[int, int]] = [{} for _ in range(positions)]  # by position and what they hold
        start = self.number(0, 0)
        self.held[start] = self._peak[start] = self._work[start] = 0

    def number(self, position: int, held: int) -> int:
        """The number of a state."""
        numbers = self._at[position]
        if held not in numbers:
            numbers[held] = len(self.all)
            self.held.append(0 if self._host else np.inf)
            self._peak.append(np.inf)
            self._work.append(np.inf)
            self.all.append(State(position, held))
        return numbers[held]

    def reach(self, target: int, source: int, need: int, added: int, work: float) -> None:
        """Come to a state by a step from another one."""
        held = self.held[source]
        self.held[target] = min(self.held[target], held + added)
        self._peak[target] = min(self._peak[target], max(self._peak[source], held + need))
        self._work[target] = min(self._work[target], self._work[source] + work)

    def chosen(self, position: int, most: int) -> list[int]:
        """At most so many of a position's states, those of the least peak and work for what they hold."""
        states = list(self._at[position].values())
        if position < len(self._at) - 1:
            states = [state for state in states if self.held[state] < np.inf]
        if len(states) <= most:
            return states
        self.left_out += len(states) - most
        counts = [sum(self._sizes[x] for x in members(self.all[state].held)) for state in states]
        low, width = min(counts), max(counts) - min(counts) + 1
        group = {state: (count - low) * (most // 2) // width for state, count in zip(states, counts)}
        rank: dict[int, int] = {}
        for least in (self._peak, self._work):
            before = Counter[int]()
            for state in sorted(states, key=lambda state: (least[state], state)):
                rank[state] = min(rank.get(state, len(states)), before[group[state]])
                before[group[state]] += 1
        return sorted(sorted(states, key=lambda state: (rank[state], state))[:most])


def members(bits: int) -> Iterator[int]:
    """The numbers that the bits of one stand for.

    >>> sorted(members(0b1101))
    [0, 2, 3]
    """
    while bits:
        yield (number := bits.bit_length() - 1)
        bits ^= 1 << number
