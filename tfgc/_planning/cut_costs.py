"""What segments of the forward part of a step cost, for all pairs of places at once.

Segments add up: a buffer is stored by the segment that makes it, if a copy behind that segment reads it. What the
backward pass of a segment needs on top of what is stored before it is what it makes again, each buffer from the first
gradient that needs it to the last, plus the gradients that are alive meanwhile. These are read off the plain step, in
the order in which it runs, so that its gradients are the clock.
"""

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tfgc._planning.blocks import Blocks
from tfgc._rewrite.liveness import IN_PLACE, timeline
from tfgc._step.step import Step, Tensor

_Ints = NDArray[np.int64]
_Flags = NDArray[np.bool_]
_NEVER = 1 << 60
# Of the blocks, how far before the end of a kept segment what is alive behind it is looked for.
_NEAR = 0.05
# Of the blocks, how many a short skip connection spans.
_SHORT, _FEW = 0.1, 20


@dataclasses.dataclass(frozen=True)
class Runs:
    """Costs of recomputed segments: arrays of a row for each place where one starts, a column for each where one ends.

    Attributes:
        stored: Bytes that one leaves to those behind it.
        need: Most bytes at once while it runs, runs again and is differentiated, on top of what is stored before it.
        work: Work of the copies.
        reads_skip: Whether these read the buffer of a short skip connection that is alive where the segment starts.
        is_idle: Whether some buffer that it reads, as the last one that does, is read by none of them, so that it is not
            stored, as if the segment were kept.
    """

    stored: _Ints
    need: _Ints
    work: NDArray[np.float64]
    reads_skip: NDArray[np.bool_]
    is_idle: NDArray[np.bool_]


@dataclasses.dataclass(frozen=True)
class Skips:
    """Short skip connections, such as that around a residual block: at each place the one that spans it, or none.

    The block behind it may not be copied, so that its buffer is stored only if the plan says so.

    Attributes:
        at: A number for each; -1 for none.
        bytes: What its buffer takes.
        made: The block that makes it.
        first_read: The first block that reads it: if that is copied in another segment than the maker, it is stored.
    """

    at: _Ints
    bytes: _Ints
    made: _Ints
    first_read: _Ints


@dataclasses.dataclass(frozen=True)
class Keeps:
    """Costs of keeping what lies between neighbouring places: an entry for each.

    Attributes:
        stored: Bytes that gradients read of it.
        handed: Bytes of what else is alive behind it and copies read.
        need: As in `Runs`.
    """

    stored: _Ints
    handed: _Ints
    need: _Ints


class CutCosts:
    """Costs of the segments of some blocks, whose step is in the order in which it runs.

    Attributes:
        places: Positions among the blocks where segments may start, ascending from 0; the last is their number.
        before_run: Costs of recomputed segments before another one that is not idle.
        before_keep: Costs of recomputed segments before a kept or idle one.
        keeps: Costs of kept ones.
    """

    def __init__(self, blocks: Blocks, places: Sequence[int], clock: Step) -> None:
        self.places = tuple(places)
        step, n = blocks.step, len(blocks.numbers)
        self._n, self._starts, self._ends = n, np.array(places[:-1]), np.array(places[1:])
        self._buffers = [b for i in blocks.numbers for b in step.makes[i]]
        self._size = np.array([step.size(b) for b in self._buffers])
        self._made = np.array([blocks.place[b[0]] for b in self._buffers])
        self._readers = [
            sorted(blocks.place[j] for j in step.readers.get(b, ()) if j in blocks.place) for b in self._buffers
        ]
        self._fixed = [step.ops[b[0]].is_stateful for b in self._buffers]
        self._block_work = np.array([step.ops[i].work for i in blocks.numbers], float)
        self._last_read = np.array([max(each, default=k) for each, k in zip(self._readers, self._made)])
        self._read_clock(blocks, clock)
        self._saved = self._first_used < len(self._gradients)
        self._transient = np.array([self._in_passing(blocks, i) for i in blocks.numbers])
        leads = np.zeros(n, bool)  # whether gradients read something that is made of a block
        self._copied_readers: list[list[int]] = [[]] * len(self._buffers)
        for x in reversed(range(len(self._buffers))):
            self._copied_readers[x] = [j for j in self._readers[x] if leads[j]]
            leads[self._made[x]] |= self._saved[x] or bool(self._copied_readers[x])
        self.skips = self._find_skips()
        self._storing = [  # those of them that have it stored
            [j for j in each if self._skipping.get(x) != j] for x, each in enumerate(self._copied_readers)
        ]
        self._last_copied = np.array([each[-1] if each else -1 for each in self._storing])
        self._last_copied[np.array(self._fixed)] = n
        self.before_run = self._runs(self._ends)
        self.before_keep = self._runs(np.append(self._ends[1:], n))
        self.keeps = self._keeps()
        # Whether the skip connection that is alive behind a kept place is so before it, too.
        self.goes_on = (self.skips.at[1:] >= 0) & (self.skips.at[1:] == self.skips.at[:-1])

    def _find_skips(self) -> Skips:
        """The largest first, and none that overlaps with one found before."""
        self._skipping: dict[int, int] = {}  # by buffer, the block that reads it last
        places = np.array(self.places)
        at = np.full(len(places), -1)
        long = max(_SHORT * self._n, _FEW)
        for x in np.argsort(-self._size, kind="stable").tolist():
            readers = self._copied_readers[x]
            if len(readers) > 1 and readers[-1] - self._made[x] <= long and not self._fixed[x]:
                spanned = (places > self._made[x]) & (places <= readers[-1])
                if (places[spanned] > readers[0]).any() and (at[spanned] < 0).all():
                    at[spanned] = x
                    self._skipping[x] = readers[-1]
        first = np.array([each[0] if each else -1 for each in self._copied_readers])
        return Skips(at, self._size[at], self._made[at], first[at])

    def _read_clock(self, blocks: Blocks, clock: Step) -> None:
        """Bytes of gradients by moment, and when each buffer is read by the first and last of them."""
        gradients = blocks.gradients
        alive = dict(zip(clock.order, timeline(clock, {i for i in gradients if clock.ops[i].is_gradient})))
        order = [i for i in clock.order if i in gradients]
        first: dict[Tensor, int] = {}
        last: dict[Tensor, int] = {}
        for k, i in enumerate(order):
            for b in blocks.step.reads[i]:
                first.setdefault(b, k)
                last[b] = k
        # Moments begin where the first gradient needs a buffer, and behind where the last one did.
        read = [b for b in self._buffers if b in first]
        begins = sorted({0, *(first[b] for b in read), *(k + 1 for b in read for k in (first[b], last[b]))})
        moment = np.searchsorted(begins, np.arange(len(order)), side="right") - 1
        self._gradients = np.zeros(len(begins), np.int64)
        np.maximum.at(self._gradients, moment, [alive[i] for i in order])
        self._first_used = np.array([moment[first[b]] if b in first else len(begins) for b in self._buffers])
        self._last_used = np.array([moment[last[b]] if b in last else -1 for b in self._buffers])
        self._before = np.minimum(self._gradients, np.roll(self._gradients, 1))  # before each moment

    def _in_passing(self, blocks: Blocks, number: int) -> int:
        """Bytes of what an operation reads and makes that no gradient reads."""
        step = blocks.step
        read, made = (
            sum(step.size(b) for b in found if b[0] in blocks.place and b not in blocks.saved)
            for found in (step.reads[number], step.makes[number])
        )
        return max(read, made) if step.ops[number].type in IN_PLACE else read + made

    def _runs(self, stored_from: _Ints) -> Runs:
        """The costs of recomputed segments, where copies from a place on have what they read stored."""
        n, ends, size, made = self._n, self._ends, self._size, self._made
        count, never = len(self._buffers), len(self._gradients)
        copied = np.zeros((n, len(ends)), bool)  # by ends: whether a block is copied in a segment up to there
        wanted = np.full((n, len(ends)), never)  # and when
        begin, end = np.full((count, len(ends)), never), np.full((count, len(ends)), -1)
        idle, mixed, over = (np.zeros((len(ends), len(ends)), bool) for _ in range(3))
        is_stored = self._last_copied[:, None] >= stored_from
        for x in reversed(range(count)):
            readers, k = self._copied_readers[x], made[x]
            first, last = np.full(len(ends), self._first_used[x]), np.full(len(ends), self._last_used[x])
            needed = np.full(len(ends), self._saved[x])
            if readers:
                again = copied[readers]
                needed |= again.any(axis=0)
                first = np.minimum(first, wanted[readers].min(axis=0))
                last = np.maximum(last, np.where(again, wanted[readers], -1).max(axis=0))
            needed &= ends > k
            begin[x], end[x] = np.where(is_stored[x] & needed, 0, np.where(needed, first, never)), last
            run = needed & ~is_stored[x]
            copied[k] |= run
            wanted[k] = np.minimum(wanted[k], np.where(run, first, never))
            if not self._fixed[x]:
                self._note_idle(idle if self._saved[x] else None, mixed, self._storing[x], k, copied)
            if x in self._skipping:
                j = self._skipping[x]
                over[(self._starts > k) & (self._starts <= j)] |= copied[j] & (ends > j)
        need = np.zeros((len(ends), len(ends)), np.int64)
        group = np.searchsorted(self._starts, made, side="right") - 1
        for column, stop in enumerate(ends):
            held = self._saved | is_stored[:, column]  # the others go at once
            which = np.flatnonzero((made < stop) & held & (begin[:, column] <= end[:, column]))
            change = np.zeros((column + 1, never + 2), np.int64)
            np.add.at(change, (group[which], begin[which, column]), size[which])
            np.add.at(change, (group[which], end[which, column] + 1), -size[which])
            alive = np.cumsum(np.cumsum(change[::-1], axis=0)[::-1], axis=1)[:, :never]
            most = np.where(alive > 0, alive + self._gradients, 0).max(axis=1)
            again = np.flatnonzero(copied[:stop, column])
            moment, makes = wanted[again, column], np.bincount(made[which], size[which], n)
            rank = np.lexsort((again, moment))
            again, moment = again[rank], moment[rank]
            so_far = np.cumsum(makes[again])
            later = so_far[np.searchsorted(moment, moment, side="right") - 1] - so_far if len(again) else so_far
            replay = alive[:, moment] + (self._transient[again] - later + self._before[moment])
            replay[again < self._starts[: column + 1, None]] = 0
            need[: column + 1, column] = np.maximum(most, replay.max(axis=1, initial=0))
        need = np.maximum(need, self._most(self._alive(np.ones(count, bool), self._last_read)))
        need[idle & mixed] = _NEVER  # part of what it reads is stored, so that it is like no kept segment
        work = self._block_work[:, None] * copied
        before = np.concatenate([np.zeros((1, len(ends))), np.cumsum(work, axis=0)])
        work = before[ends, np.arange(len(ends))][None] - before[self._starts]
        return Runs(self._made_between(is_stored), need, work, over, idle)

    def _note_idle(self, idle: _Flags, mixed: _Flags, readers: list[int], made: int, copied: NDArray[np.bool_]) -> None:
        """Note segments that are the last to read a buffer: by nothing that is copied in them, or at once by a copy."""
        low = made + 1
        for k, j in enumerate(readers):
            if low <= j:
                rest = readers[k:]
                starts, last = (self._starts >= low) & (self._starts <= j), self._ends > rest[-1]
                reads = copied[rest].any(axis=0)
                if idle is not None:
                    idle[starts] |= last & ~reads
                mixed[starts & last] |= last & reads
                low = j + 1

    def _keeps(self) -> Keeps:
        starts, ends, moments = self._starts, self._ends, np.arange(len(self._gradients))
        stored, handed, need = (np.zeros(len(ends), np.int64) for _ in range(3))
        near = max(1, round(_NEAR * self._n))
        for k, (start, end) in enumerate(zip(starts, ends)):
            which = (self._made >= start) & (self._made < end) & self._saved
            stored[k] = self._size[which].sum()
            crossing = (self._made < end) & (self._made >= min(start, end - near)) & (self._last_copied >= end)
            handed[k] = self._size[crossing & ~self._saved].sum()
            alive = (moments[:, None] <= self._last_used[which]) @ self._size[which]
            used = (moments[:, None] <= self._last_used[which]).any(axis=1)
            need[k] = np.where(used, alive + self._gradients, 0).max()
        again = self._most(self._alive(self._saved, self._n) + self._alive(~self._saved, self._last_read))
        return Keeps(stored, handed, np.maximum(need, np.diagonal(again)))

    def _alive(self, which: NDArray[np.bool_], until: _Ints | int) -> _Ints:
        """For each start and block the bytes of buffers made from start on, up to there, until some block."""
        change = np.zeros((self._n + 1, self._n + 2), np.int64)
        end = np.broadcast_to(until, len(which))[which]
        np.add.at(change, (self._made[which], self._made[which]), self._size[which])
        np.add.at(change, (self._made[which], end + 1), -self._size[which])
        return np.cumsum(np.cumsum(change[::-1], axis=0)[::-1][self._starts], axis=1)[:, : self._n]

    def _most(self, found: _Ints) -> _Ints:
        """For each start and end the most from start to end."""
        inside = np.where(np.arange(self._n) >= self._starts[:, None], found, 0)
        return np.maximum.accumulate(inside, axis=1)[:, self._ends - 1]

    def _made_between(self, which: NDArray[np.bool_]) -> _Ints:
        """For each start and end the bytes of buffers made between, of those that a column of `which` names."""
        columns = np.arange(len(self._ends))
        before = np.concatenate([np.zeros((1, len(columns)), np.int64), np.cumsum(which * self._size[:, None], axis=0)])
        first, last = (np.searchsorted(self._made, each) for each in (self._starts, self._ends))
        return before[last, columns][None] - before[first]


def places(blocks: Blocks, most: int, near: Sequence[int] = ()) -> list[int]:
    """Positions among blocks where segments may start: all, or some.

    Args:
        blocks: The blocks.
        most: How many about: evenly spaced ones, each where little is alive.
        near: Positions around which there are as many again.
    """
    n = len(blocks.numbers)
    if n <= most:
        return list(range(n + 1))
    change = np.zeros(n + 2, np.int64)
    for k, i in enumerate(blocks.numbers):
        for b in blocks.step.makes[i]:
            last = max((blocks.place[j] for j in blocks.step.readers.get(b, ()) if j in blocks.place), default=k)
            change[k + 1] += blocks.step.size(b)
            change[last + 1] -= blocks.step.size(b)
    alive = np.cumsum(change)
    bounds = np.linspace(1, n, most, dtype=int)
    chosen = {start + int(alive[start:end].argmin()) for start, end in itertools.pairwise(bounds) if start < end}
    width = most // (2 * len(near)) if near else 0
    around = {at + step for at in near for step in range(-width, width + 1)}
    return sorted({0, n} | chosen | {at for at in around if 0 < at < n})
