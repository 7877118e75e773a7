"""What replaying a segment needs, for every end at once: the simulator's arithmetic in closed form.

A segment from `start` to `end` is run again with all of it kept. Buffers made before `start` that are *held* for others
anyway cost nothing here. Moving the end by a node adds that node and may make earlier nodes run whose results nobody in
the segment read so far; each extends the lifetimes of what it reads. One sweep thus gives all ends of a start, and all
figures equal those that `_simulate.simulator` counts event by event.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tfgc._core.buffers import Buffers
from tfgc._simulate.work import NodeWork
from tfgc.strategies._segment_peaks import FirstPass, Replay


class SegmentCost(NamedTuple):
    """One segment, run forward in a first pass and again for its gradients. Bytes leave out what is held."""

    end: int  # position after its last node
    forward_peak: int  # most bytes at once in the first pass
    replay_peak: int  # most bytes at once in the replay and its backward pass
    captured_bytes: int  # bytes of its inputs
    inputs: int  # buffers, as the bits of a number
    work: float  # work of the replay's forward part


class SegmentCosts:
    """Sweeps the segments of a graph.

    `replayable_until` is for each position the end of the longest segment from there on that can be run twice.
    """

    def __init__(self, buffers: Buffers, works: Sequence[NodeWork]) -> None:
        self.buffers = b = buffers
        self.work = [work.forward for work in works]
        self.replayable_until = runs_until([cost.obstacle is None for cost in b.graph.costs])
        n = len(b.graph)
        self._newly_replayed: list[list[int]] = [[] for _ in range(n + 2)]
        for i, end in enumerate(b.first_replay_end):
            self._newly_replayed[end].append(i)
        change = [0] * (n + 2)
        for number, size in enumerate(b.size):
            change[b.producer[number] + 1] += size
            change[max(b.last_read[number], b.producer[number]) + 1] -= size
        self._live = list(itertools.accumulate(change))

    def live(self, position: int, held: frozenset[int]) -> int:
        """Bytes alive before `position` in a plain forward pass, without what is held."""
        b = self.buffers
        return self._live[position] - sum(b.size[x] for x in held if b.last_read[x] >= position)

    def sweep(self, start: int, held: frozenset[int], limit: float) -> Iterator[SegmentCost]:
        """Yield a `SegmentCost` for each end, as long as no more than `limit` bytes are needed."""
        growing = _GrowingSegment(self, self._live, start, held)
        for end in range(start + 1, self.replayable_until[start] + 1):
            growing.extend(end, [i for i in self._newly_replayed[end] if i >= start])
            if growing.least > limit:
                return
            yield growing.cost(end)


def runs_until(flags: Sequence[bool]) -> list[int]:
    """For each position where the run of true flags from there on ends."""
    until = [len(flags)] * (len(flags) + 1)
    for i in range(len(flags) - 1, -1, -1):
        until[i] = until[i + 1] if flags[i] else i
    return until


class _GrowingSegment:
    """A segment with one start, whose end moves on."""

    def __init__(self, costs: SegmentCosts, live: Sequence[int], start: int, held: frozenset[int]) -> None:
        self._buffers = b = costs.buffers
        self._start, self._held = start, held
        self._inputs = 0  # as the bits of a number
        self._input_bytes = 0
        self._first_pass, self._replay = FirstPass(b, live, start, held), Replay(b, costs.work, start)

    @property
    def least(self) -> int:
        """Bytes that this segment and every longer one need at least."""
        return max(self._replay.forward_peak, self._replay.backward_peak, self._first_pass.peak)

    def extend(self, end: int, newly_replayed: Sequence[int]) -> None:
        """Move the end on by a node, which makes the nodes `newly_replayed` run in the replay."""
        b, node = self._buffers, end - 1
        self._replay.add(node)
        self._first_pass.add(node)
        first = node
        for i in newly_replayed:
            for number in b.inputs[i]:
                if number not in self._held:
                    first = min(first, self._use(number, i))
        for number in b.saved[node]:
            if number not in self._held:
                if b.producer[number] != node:
                    first = min(first, self._use(number, node))
                self._replay.save(number, node)
        self._replay.run(node, newly_replayed, first)
        self._first_pass.run(node)

    def cost(self, end: int) -> SegmentCost:
        """What it needs that ends there now."""
        replay = self._replay
        return SegmentCost(end, self._first_pass.peak, replay.peak(end), self._input_bytes, self._inputs, replay.work)

    def _use(self, number: int, at: int) -> int:
        """Read a buffer that is not held at node `at` of the replay; return the first node where more is alive."""
        if self._buffers.producer[number] < self._start and not self._inputs >> number & 1:
            self._inputs |= 1 << number
            self._input_bytes += self._buffers.size[number]
            self._first_pass.capture(number)
        return self._replay.use(number, at)
