"""What replaying a stretch of nodes needs, for every end at once: the simulator's arithmetic in closed form.

A stretch from `start` to `end` is run again with all of it kept. Buffers made before
`start` that are *held* for others anyway count as nothing here. Moving the end by a node
adds that node and may wake earlier ones whose results nobody in the stretch read so far;
each lengthens the lives of what it reads. One sweep thus gives all ends of a
start, and every figure is the one that `_simulate.simulator` counts event by event.
"""

import itertools
from typing import NamedTuple


class SegmentCost(NamedTuple):
    """One stretch, run forward in a first pass and again for its gradients.

    Attributes:
        end: Position after its last node.
        forward: Most bytes at once in the first pass, on top of what is held.
        replay: Most bytes at once in the replay and its backward pass, likewise.
        captured: Bytes of its inputs that are not held.
        inputs: Those inputs.
        work: Work of the replay's forward part.
    """

    end: int
    forward: int
    replay: int
    captured: int
    inputs: frozenset
    work: float


class SegmentCosts:
    """Sweeps the stretches of a graph.

    Args:
        buffers: The graph's `Buffers`.
        work: Forward work of each node.
    """

    def __init__(self, buffers, work):
        self.buffers = b = buffers
        self.size = len(b.graph)
        self.work = work
        made = [sum(b.size[m] for m in makes) for makes in b.makes]
        self.keeping = [c - min(c, m) if takes else c for c, m, takes in zip(b.keeping, made, b.takes)]
        self.forward = [c - min(c, m) if takes else c for c, m, takes in zip(b.forward, made, b.takes)]
        self.replayable = _runs_until([cost.obstacle is None for cost in b.graph.costs])
        self._woken = [[] for _ in range(self.size + 2)]
        for i, end in enumerate(b.wakes):
            self._woken[end].append(i)
        change = [0] * (self.size + 2)
        for number, size in enumerate(b.size):
            change[b.maker[number] + 1] += size
            change[max(b.last[number], b.maker[number]) + 1] -= size
        self._live = list(itertools.accumulate(change))

    def live(self, position, held):
        """Bytes alive before `position` in a plain forward pass, without what is held."""
        b = self.buffers
        return self._live[position] - sum(b.size[x] for x in held if b.last[x] >= position)

    def live_without(self, start, held):
        """`live` for positions from `start` on."""
        ends = sorted((self.buffers.last[x], self.buffers.size[x]) for x in held if self.buffers.last[x] >= start)
        if not ends:
            return self._live.__getitem__
        return lambda position: self._live[position] - sum(size for end, size in ends if end >= position)

    def sweep(self, start, held, limit):
        """Yield a `SegmentCost` for each end, as long as no more than `limit` bytes are needed."""
        sweep = _GrowingSegment(self, start, held)
        for end in range(start + 1, self.replayable[start] + 1):
            stretch = sweep.extend(end, [i for i in self._woken[end] if i >= start])
            if sweep.least > limit:
                return
            yield stretch


def _runs_until(flags):
    """For each position where the run of true flags from there on ends."""
    until = [len(flags)] * (len(flags) + 1)
    for i in range(len(flags) - 1, -1, -1):
        until[i] = until[i + 1] if flags[i] else i
    return until


class _GrowingSegment:
    """One start, its end moving on."""

    def __init__(self, sweeper, start, held):
        self._s, self._b, self._start, self._held = sweeper, sweeper.buffers, start, held
        self._size, self._maker, self._last = self._b.size, self._b.maker, self._b.last
        self._live = sweeper.live_without(start, held)
        self._alive = []  # before each node in the replay, its own crest left out
        self._past = []  # before each node, captured buffers that the first pass reads no more
        self._dies = {}  # bytes of captured buffers by the position from which on the first pass reads them no more
        self._reach, self._kept_at = {}, {}  # of each buffer: its last use, the first node that keeps it
        self._kept = self._captured = self._work = self._gone = 0
        self._replay = self._backward = self._passing = 0
        self._inputs = frozenset()
        self._runs = False

    @property
    def least(self):
        """What this stretch and every longer one needs at least."""
        return max(self._replay, self._backward, self._passing)

    def extend(self, end, newly_replayed):
        """Move the end on by a node, which makes `newly_replayed` nodes run."""
        b, start, node = self._b, self._start, end - 1
        self._alive.append(self._kept)
        self._gone += self._dies.pop(node, 0)
        self._past.append(self._gone)
        first = node
        for i in newly_replayed:
            self._runs = True
            self._work += self._s.work[i]
            for number in b.reads[i]:
                first = min(first, self._use(number, i))
        for number in b.keeps[node]:
            if self._maker[number] != node:
                first = min(first, self._use(number, node))
            if number not in self._kept_at and number not in self._held:
                self._kept_at[number] = node
                self._kept += self._size[number]
        self._kept += b.internal[node]
        wakes, keeping, alive = b.wakes, self._s.keeping, self._alive
        for w in newly_replayed:
            self._replay = max(self._replay, alive[w - start] + keeping[w])
        for w in range(first, end):
            if wakes[w] <= end and alive[w - start] + keeping[w] > self._replay:
                self._replay = alive[w - start] + keeping[w]
        gradients = b.gradients[node]
        if gradients is not None:
            self._backward = max(self._backward, self._kept + gradients + b.backward[node])
        self._passing = max(self._passing, self._first_pass(node))
        replay = max(self._replay + b.waiting[end] if self._runs else 0, self._backward)
        return SegmentCost(end, self._passing, replay, self._captured, self._inputs, self._work)

    def _use(self, number, at):
        """Lengthen a buffer's life to its use at `at`; return the first position that gains by it."""
        if number in self._held:
            return at
        outside = self._maker[number] < self._start
        if outside and number not in self._inputs:
            self._capture(number)
        since = self._reach.get(number, self._start - 1 if outside else self._maker[number])
        if at > since:
            self._reach[number] = at
            size = self._size[number]
            for w in range(since + 1 - self._start, min(at, self._kept_at.get(number, at)) + 1 - self._start):
                self._alive[w] += size
        return since + 1

    def _capture(self, number):
        size, dies = self._size[number], self._last[number] + 1
        self._inputs |= {number}
        self._captured += size
        here = self._start + len(self._past)
        if dies >= here:
            self._dies[dies] = self._dies.get(dies, 0) + size
            return
        self._gone += size
        for w in range(max(dies, self._start), here):
            self._past[w - self._start] += size
            self._passing = max(self._passing, self._first_pass(w))

    def _first_pass(self, w):
        return self._live(w) + self._past[w - self._start] + self._s.forward[w]
