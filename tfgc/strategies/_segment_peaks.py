"""What a segment needs while its end moves on: the peak of its first pass, and that of its replay."""

import itertools
from collections.abc import Sequence

from tfgc._core.buffers import Buffers


class FirstPass:
    """The peak of the first pass, in which captured inputs stay after their last use."""

    def __init__(self, b: Buffers, live: Sequence[int], start: int, held: frozenset[int]) -> None:
        self._size, self._last_read, self._forward_peak = b.size, b.last_read, b.forward_peak
        self._live, self._start = live, start
        self._held = [0] * (len(b.graph) + 1)  # bytes of held buffers that nodes from each one on read
        for x in held:
            self._held[b.last_read[x]] += b.size[x]
        self._held = list(itertools.accumulate(reversed(self._held)))[::-1]
        self._staying: list[int] = []  # for each node, bytes of captured inputs after their last use
        self._staying_now = 0
        self._last_uses: dict[int, int] = {}  # bytes of captured inputs, by the position after their last use
        self.peak = 0  # most bytes at once

    def add(self, node: int) -> None:
        self._staying_now += self._last_uses.pop(node, 0)
        self._staying.append(self._staying_now)

    def capture(self, number: int) -> None:
        size, since, end = self._size[number], self._last_read[number] + 1, self._start + len(self._staying)
        if since >= end:
            self._last_uses[since] = self._last_uses.get(since, 0) + size
            return
        self._staying_now += size
        for node in range(max(since, self._start), end):
            self._staying[node - self._start] += size
            self.run(node)

    def run(self, node: int) -> None:
        alive = self._live[node] + self._staying[node - self._start] - self._held[node]
        self.peak = max(self.peak, alive + self._forward_peak[node])


class Replay:
    """The replay, which saves what its backward pass reads, and that backward pass.

    The peaks of both parts are most bytes at once, without gradients that wait meanwhile; work is that of the forward
    part.
    """

    def __init__(self, b: Buffers, work: Sequence[float], start: int) -> None:
        self._buffers = b
        self._size, self._producer, self._ends = b.size, b.producer, b.first_replay_end
        self._peaks, self._node_work, self._start = b.forward_peak, work, start
        self._alive: list[int] = []  # bytes before each node
        self._last_use: dict[int, int] = {}  # of each buffer
        self._saved_at: dict[int, int] = {}  # the first node that saves each buffer
        self._saved_bytes = 0
        self._runs = False
        self.forward_peak = self.backward_peak = 0
        self.work: float = 0

    def add(self, node: int) -> None:
        self._alive.append(self._saved_bytes)

    def use(self, number: int, at: int) -> int:
        """Let a buffer live until node `at`; return the first node where it was not alive before."""
        producer, start = self._producer[number], self._start
        last = self._last_use.get(number, max(producer, start - 1))
        if at > last:
            self._last_use[number] = at
            size, alive = self._size[number], self._alive
            for i in range(last + 1 - start, min(at, self._saved_at.get(number, at)) + 1 - start):
                alive[i] += size
        return last + 1

    def save(self, number: int, node: int) -> None:
        if number not in self._saved_at:
            self._saved_at[number] = node
            self._saved_bytes += self._size[number]

    def run(self, node: int, newly_replayed: Sequence[int], first: int) -> None:
        """Run the last node; more than before is alive at the nodes `newly_replayed` and from `first` on."""
        b, start, alive, peaks = self._buffers, self._start, self._alive, self._peaks
        peak = self.forward_peak
        for i in newly_replayed:
            self._runs = True
            self.work += self._node_work[i]
            peak = max(peak, alive[i - start] + peaks[i])
        for i in range(first, node + 1):
            if self._ends[i] <= node + 1 and alive[i - start] + peaks[i] > peak:
                peak = alive[i - start] + peaks[i]
        self.forward_peak = peak
        gradient_bytes = b.gradient_bytes_at[node]
        if gradient_bytes is not None:
            self.backward_peak = max(self.backward_peak, self._saved_bytes + gradient_bytes + b.backward_peak[node])

    def peak(self, end: int) -> int:
        """Most bytes at once, gradients that wait for a segment up to `end` among them."""
        waiting = self.forward_peak + self._buffers.pending_gradient_bytes[end] if self._runs else 0
        return max(waiting, self.backward_peak)
