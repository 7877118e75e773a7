"""What replaying a segment needs, for every end at once: the simulator's arithmetic in closed form.

A segment from `start` to `end` is run again with all of it kept. Buffers made before `start` that are *held* for others
anyway cost nothing here. Moving the end by a node adds that node and may make earlier nodes run whose results nobody in
the segment read so far; each extends the lifetimes of what it reads. One sweep thus gives all ends of a start, and all
figures equal those that `_simulate.simulator` counts event by event.
"""

import itertools
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from tfgc._core.buffers import Buffers


class SegmentCost(NamedTuple):
    """One segment, run forward in a first pass and again for its gradients. Bytes leave out what is held.

    Attributes:
        end: Position after its last node.
        forward_peak: Most bytes at once in the first pass.
        replay_peak: Most bytes at once in the replay and its backward pass.
        captured_bytes: Bytes of its inputs.
        inputs: Those inputs.
        work: Work of the replay's forward part.
    """

    end: int
    forward_peak: int
    replay_peak: int
    captured_bytes: int
    inputs: frozenset[int]
    work: float


class SegmentCosts:
    """Sweeps the segments of a graph.

    Args:
        buffers: The graph's `Buffers`.
        work: Forward work of each node.

    Attributes:
        forward_peak, saving_peak: Most bytes at once that each node allocates in a forward pass that saves nothing, and
            in one that saves what its backward pass reads; less what it overwrites in place.
        replayable_until: For each position the end of the longest segment from there on that can be run twice.
    """

    def __init__(self, buffers: Buffers, work: Sequence[float]) -> None:
        self.buffers = b = buffers
        self.work = work
        made = [sum(b.size[x] for x in outputs) if b.in_place[i] else 0 for i, outputs in enumerate(b.outputs)]
        self.forward_peak = [max(0, peak - m) for peak, m in zip(b.forward_peak, made)]
        self.saving_peak = [max(0, peak - m) for peak, m in zip(b.saving_peak, made)]
        self.replayable_until = _runs_until([cost.obstacle is None for cost in b.graph.costs])
        n = len(b.graph)
        self._newly_replayed: list[list[int]] = [[] for _ in range(n + 2)]
        for i, end in enumerate(b.first_replay_end):
            self._newly_replayed[end].append(i)
        change = [0] * (n + 2)
        for number, size in enumerate(b.size):
            change[b.producer[number] + 1] += size
            change[max(b.last_read[number], b.producer[number]) + 1] -= size
        self._live = list(itertools.accumulate(change))

    def live(self, position: int, held: AbstractSet[int]) -> int:
        """Bytes alive before `position` in a plain forward pass, without what is held."""
        b = self.buffers
        return self._live[position] - sum(b.size[x] for x in held if b.last_read[x] >= position)

    def sweep(self, start: int, held: AbstractSet[int], limit: int) -> Iterator[SegmentCost]:
        """Yield a `SegmentCost` for each end, as long as no more than `limit` bytes are needed."""
        growing = _GrowingSegment(self, self._live, start, held)
        for end in range(start + 1, self.replayable_until[start] + 1):
            cost = growing.extend(end, [i for i in self._newly_replayed[end] if i >= start])
            if growing.least > limit:
                return
            yield cost


def _runs_until(flags: Sequence[bool]) -> list[int]:
    """For each position where the run of true flags from there on ends."""
    until = [len(flags)] * (len(flags) + 1)
    for i in range(len(flags) - 1, -1, -1):
        until[i] = until[i + 1] if flags[i] else i
    return until


class _GrowingSegment:
    """A segment with one start, whose end moves on."""

    def __init__(self, costs: SegmentCosts, live: Sequence[int], start: int, held: AbstractSet[int]) -> None:
        self._buffers, self._start, self._held = costs.buffers, start, held
        self._captured = _Captured(costs.buffers)
        self._first_pass = _FirstPass(costs, live, start, held)
        self._replay = _Replay(costs, start)

    @property
    def least(self) -> int:
        """Bytes that this segment and every longer one need at least."""
        return max(self._replay.forward_peak, self._replay.backward_peak, self._first_pass.peak)

    def extend(self, end: int, newly_replayed: Sequence[int]) -> SegmentCost:
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
        captured, replay = self._captured, self._replay
        return SegmentCost(end, self._first_pass.peak, replay.peak(end), captured.bytes, captured.inputs, replay.work)

    def _use(self, number: int, at: int) -> int:
        """Read a buffer that is not held at node `at` of the replay; return the first node where more is alive."""
        if self._buffers.producer[number] < self._start and number not in self._captured.inputs:
            self._captured.add(number)
            self._first_pass.capture(number)
        return self._replay.use(number, at)


class _Captured:
    """The inputs of a segment, which are stored from its first pass to its replay."""

    def __init__(self, buffers: Buffers) -> None:
        self._size = buffers.size
        self.inputs: frozenset[int] = frozenset()
        self.bytes = 0

    def add(self, number: int) -> None:
        self.inputs |= {number}
        self.bytes += self._size[number]


class _FirstPass:
    """The peak of the first pass, in which captured inputs stay after their last use."""

    def __init__(self, costs: SegmentCosts, live: Sequence[int], start: int, held: AbstractSet[int]) -> None:
        b = costs.buffers
        self._size, self._last_read, self._forward_peak = b.size, b.last_read, costs.forward_peak
        self._live, self._start = live, start
        self._held = [(b.last_read[x], b.size[x]) for x in held if b.last_read[x] >= start]
        self._staying: list[int] = []  # for each node, bytes of captured inputs after their last use
        self._staying_now = 0
        self._last_uses: dict[int, int] = {}  # bytes of captured inputs, by the position after their last use
        self.peak = 0

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
        alive = self._live[node] + self._staying[node - self._start]
        if self._held:
            alive -= sum(size for last, size in self._held if last >= node)
        self.peak = max(self.peak, alive + self._forward_peak[node])


class _Replay:
    """The replay, which saves what its backward pass reads, and that backward pass.

    Attributes:
        forward_peak: Most bytes at once in the forward part, without gradients that wait meanwhile.
        backward_peak: Most bytes at once in the backward part.
        work: Work of the forward part.
    """

    def __init__(self, costs: SegmentCosts, start: int) -> None:
        b = costs.buffers
        self._buffers, self._size, self._producer, self._ends = b, b.size, b.producer, b.first_replay_end
        self._saving_peak, self._node_work, self._start = costs.saving_peak, costs.work, start
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
        b, start, alive, saving_peak = self._buffers, self._start, self._alive, self._saving_peak
        self._saved_bytes += b.internal_bytes[node]
        peak = self.forward_peak
        for i in newly_replayed:
            self._runs = True
            self.work += self._node_work[i]
            peak = max(peak, alive[i - start] + saving_peak[i])
        for i in range(first, node + 1):
            if self._ends[i] <= node + 1 and alive[i - start] + saving_peak[i] > peak:
                peak = alive[i - start] + saving_peak[i]
        self.forward_peak = peak
        gradient_bytes = b.gradient_bytes_at[node]
        if gradient_bytes is not None:
            self.backward_peak = max(self.backward_peak, self._saved_bytes + gradient_bytes + b.backward_peak[node])

    def peak(self, end: int) -> int:
        """Most bytes at once in both parts, with the gradients that wait for a segment up to `end`."""
        forward_peak = self.forward_peak + self._buffers.pending_gradient_bytes[end] if self._runs else 0
        return max(forward_peak, self.backward_peak)
