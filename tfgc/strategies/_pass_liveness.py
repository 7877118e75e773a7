"""Which buffers are alive in the passes of nested plans."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tfgc._core.buffers import Buffers


class Liveness(NamedTuple):
    """Which buffers are alive in a pass up to some end.

    Attributes:
        last_use: Position of the last use of each buffer.
        bytes: Bytes alive before each node.
        runs: Whether each node runs.
    """

    last_use: list[int]
    bytes: NDArray[np.int64]
    runs: NDArray[np.bool_]


class PassLiveness:
    """The `Liveness` of each pass over a graph, computed once."""

    def __init__(self, buffers: Buffers) -> None:
        self._buffers = buffers
        self._size, self._producer = np.array(buffers.size), np.array(buffers.producer)
        self._known: dict[tuple[int, bool], Liveness] = {}
        self._inputs: dict[tuple[int, int, bool], frozenset[int]] = {}

    def of(self, end: int, first: bool) -> Liveness:
        """The liveness in a pass up to `end`: of the first pass, or of a replay."""
        if (end, first) not in self._known:
            b, n = self._buffers, len(self._buffers.graph)
            if first:
                last_use = np.maximum(b.last_read, self._producer)
                runs = np.ones(n, bool)
            else:
                used = [[at for at, least_end in uses if least_end <= end] for uses in b.replay_uses]
                last_use = np.array([max([producer, *at]) for producer, at in zip(b.producer, used)])
                runs = np.array(b.first_replay_end) <= end
            change = np.zeros(n + 2, np.int64)
            np.add.at(change, self._producer + 1, self._size)
            np.add.at(change, last_use + 1, -self._size)
            self._known[end, first] = Liveness(last_use.tolist(), np.cumsum(change), runs)
        return self._known[end, first]

    def inputs(self, start: int, end: int, first: bool = False) -> frozenset[int]:
        """Buffers made before `start` that a pass from there to `end` reads."""
        if (start, end, first) not in self._inputs:
            b, last_use = self._buffers, self.of(end, first).last_use
            read = frozenset(x for x in b.live_across[start] if b.size[x] and last_use[x] >= start)
            self._inputs[start, end, first] = read
        return self._inputs[start, end, first]
