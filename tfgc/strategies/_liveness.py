"""Which buffers are alive in a pass over a graph, forward and backward; see `_passes`."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tfgc._core.buffers import Buffers


class Alive(NamedTuple):
    """What is alive in a pass up to some end."""

    last_use: NDArray[np.int64]  # position of the last use of each buffer
    bytes: NDArray[np.int64]  # bytes alive before each node
    runs: NDArray[np.bool_]  # whether each node runs


class Liveness:
    """What is alive in each pass over a graph, computed once."""

    def __init__(self, buffers: Buffers) -> None:
        self.buffers = buffers
        self.size, self.forward_peak = np.array(buffers.size), np.array(buffers.forward_peak)
        self._producer = np.array(buffers.producer)
        self._known: dict[tuple[int, bool], Alive] = {}
        self._inputs: dict[tuple[int, int, bool], frozenset[int]] = {}

    def of(self, end: int, first: bool) -> Alive:
        """What is alive in a pass up to `end`: in the first pass, or in a replay."""
        if (end, first) not in self._known:
            b, n = self.buffers, len(self.buffers.graph)
            if first:
                last_use, runs = np.maximum(b.last_read, self._producer), np.ones(n, bool)
            else:
                used = [[at for at, least_end in uses if least_end <= end] for uses in b.replay_uses]
                last_use = np.array([max([producer, *at]) for producer, at in zip(b.producer, used)])
                runs = np.array(b.first_replay_end) <= end
            change = np.zeros(n + 2, np.int64)
            np.add.at(change, self._producer + 1, self.size)
            np.add.at(change, last_use + 1, -self.size)
            self._known[end, first] = Alive(last_use, np.cumsum(change), runs)
        return self._known[end, first]

    def inputs(self, start: int, end: int, first: bool = False) -> frozenset[int]:
        """Buffers made before `start` that a pass from there to `end` reads, forward or backward."""
        if (start, end, first) not in self._inputs:
            size, last_use = self.buffers.size, self.of(end, False).last_use
            crossing = (x for x in self.buffers.live_across[start] if size[x])
            self._inputs[start, end, first] = frozenset(x for x in crossing if first or last_use[x] >= start)
        return self._inputs[start, end, first]


class KeptReplay:
    """The replay of a segment with all of it kept, whose end moves on. Buffers in `held` cost nothing."""

    def __init__(self, liveness: Liveness, start: int, held: frozenset[int]) -> None:
        self._liveness, self._start, self._held = liveness, start, held
        self._saved: dict[int, int] = {}  # the node that saves each buffer first
        self._saved_bytes = self._backward = 0
        self._end = start

    def up_to(self, stop: int) -> tuple[int, int, np.ndarray]:
        """What the replay up to a position needs, what every longer one needs at least, and which nodes run in it."""
        b, start, size = self._liveness.buffers, self._start, self._liveness.size
        for i in range(self._end, stop):
            for x in b.saved[i]:
                if x not in self._held and x not in self._saved:
                    self._saved[x] = i
                    self._saved_bytes += b.size[x]
            gradient_bytes = b.gradient_bytes_at[i]
            if gradient_bytes is not None:
                self._backward = max(self._backward, self._saved_bytes + gradient_bytes + b.backward_peak[i])
        self._end = stop
        last_use, live, runs = self._liveness.of(stop, False)
        nodes, runs = np.arange(start, stop), runs[start:stop]
        alive = live[start:stop] + self._liveness.forward_peak[start:stop]
        for x in self._held:
            alive -= size[x] * (last_use[x] >= nodes)
        saved = np.fromiter(self._saved, int, len(self._saved))
        since = np.fromiter(self._saved.values(), int, len(self._saved))
        from_ = np.maximum(last_use[saved], since) + 1 - start
        alive += np.cumsum(np.bincount(from_, size[saved], stop - start + 1)).astype(np.int64)[: stop - start]
        forward = int(alive[runs].max(initial=0))
        pending = b.pending_gradient_bytes[stop] if runs.any() else 0
        return max(forward + pending, self._backward), max(forward, self._backward), runs
