"""What segments of the forward part of a step cost, for all pairs of places at once.

Segments add up: a buffer is stored by the segment that makes it, if a copy behind that segment reads it. What the
backward pass of a segment needs on top of what is stored before it is what it makes again, each buffer from the first
gradient that needs it to the last, plus the gradients that are alive meanwhile. Of what is like that in any step the
costs are exact; simulated peaks of plans are a few percent off where a replay begins before its segment's turn.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tfgc._planning.block_buffers import BlockBuffers, Ints
from tfgc._planning.blocks import Blocks
from tfgc._step.step import Step

_Flags = NDArray[np.bool_]
_NEVER = 1 << 60
# Of the blocks, how far before the end of a kept segment what is alive behind it is looked for.
_NEAR = 0.05


@dataclasses.dataclass(frozen=True)
class Runs:
    """Costs of recomputed segments: arrays of a row for each place where one starts, a column for each where one ends.

    Attributes:
        stored: Bytes that one leaves to those behind it.
        need: Most bytes at once while it runs, runs again and is differentiated, on top of what is stored before it.
        work: Work of the copies.
        reads_skip: Whether these read the buffer of a short skip connection that is alive where the segment starts.
        is_idle: Whether some buffer that it reads, as the last one that does, is read by none of them: then it is not
            stored, as if the segment were kept.
    """

    stored: Ints
    need: Ints
    work: NDArray[np.float64]
    reads_skip: NDArray[np.bool_]
    is_idle: NDArray[np.bool_]


@dataclasses.dataclass(frozen=True)
class Keeps:
    """Costs of keeping what lies between neighbouring places: an entry for each.

    Attributes:
        stored: Bytes that gradients read of it.
        handed: Bytes of what else is alive behind it and copies read.
        need: As in `Runs`.
    """

    stored: Ints
    handed: Ints
    need: Ints


class CutCosts:
    """Costs of the segments of some blocks, with the gradients of some order of the step as the clock.

    Attributes:
        places: Positions among the blocks where segments may start, ascending from 0; the last is their number.
        before_run: Costs of recomputed segments before another one that is not idle.
        before_keep: Costs of recomputed segments before a kept or idle one.
        keeps: Costs of kept ones.
        skips: The short skip connections.
        begins: Bytes of gradients before the first one that needs a buffer, on top of what is stored: of the loss.
        goes_on: Whether that which spans the end of a kept place spans its start, too.
    """

    def __init__(self, blocks: Blocks, places: Sequence[int], clock: Step) -> None:
        self.places = tuple(places)
        self._buffers = buffers = BlockBuffers(blocks, places, clock)
        self._group = np.searchsorted(np.array(places[:-1]), buffers.made, side="right") - 1
        self._n, self._starts, self._ends = len(blocks.numbers), np.array(places[:-1]), np.array(places[1:])
        self._block_work = np.array([blocks.step.ops[i].work for i in blocks.numbers], float)
        self.before_run = self._runs(self._ends)
        self.before_keep = self._runs(np.append(self._ends[1:], self._n))
        self.keeps = self._keeps()
        self.skips, self.begins = buffers.skips, int(buffers.gradients[0])
        self.goes_on = (self.skips.at[1:] >= 0) & (self.skips.at[1:] == self.skips.at[:-1])

    def _runs(self, stored_from: Ints) -> Runs:
        """The costs of recomputed segments, where copies from a place on have what they read stored."""
        b, n, ends, made = self._buffers, self._n, self._ends, self._buffers.made
        count, never = len(b.size), len(b.gradients)
        copied = np.zeros((n, len(ends)), bool)  # by ends: whether a block is copied in a segment up to there
        wanted = np.full((n, len(ends)), never)  # and when
        begin, end = np.full((count, len(ends)), never), np.full((count, len(ends)), -1)
        idle, mixed, over = (np.zeros((len(ends), len(ends)), bool) for _ in range(3))
        is_stored = b.last_storing[:, None] >= stored_from
        for x in reversed(range(count)):
            readers, k = b.copied_readers[x], made[x]
            first, last = np.full(len(ends), b.first_used[x]), np.full(len(ends), b.last_used[x])
            needed = np.full(len(ends), b.saved[x])
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
            if not b.fixed[x]:
                self._note_idle(idle if b.saved[x] else None, mixed, b.storing[x], k, copied)
            if x in b.skipping:
                j = b.skipping[x]
                over[(self._starts > k) & (self._starts <= j)] |= copied[j] & (ends > j)
        need = np.zeros((len(ends), len(ends)), np.int64)
        for column, stop in enumerate(ends):
            which = (made < stop) & (b.saved | is_stored[:, column])  # the others go at once
            which &= begin[:, column] <= end[:, column]
            moments = begin[which, column], end[which, column]
            need[: column + 1, column] = self._need(column, which, moments, copied[:stop, column], wanted[:, column])
        need = np.maximum(need, self._most(self._alive(np.ones(count, bool), b.last_read)))
        need[idle & mixed] = _NEVER  # part of what it reads is stored, so that it is like no kept segment
        work = self._block_work[:, None] * copied
        before = np.concatenate([np.zeros((1, len(ends))), np.cumsum(work, axis=0)])
        work = before[ends, np.arange(len(ends))][None] - before[self._starts]
        return Runs(self._made_between(is_stored), need, work, over, idle)

    def _need(self, column: int, which: _Flags, moments: tuple[Ints, Ints], copied: _Flags, wanted: Ints) -> Ints:
        """Most bytes at once of segments up to the end of a column, by their start, in their backward pass."""
        b, begin, end = self._buffers, *moments
        change = np.zeros((column + 1, len(b.gradients) + 2), np.int64)
        np.add.at(change, (self._group[which], begin), b.size[which])
        np.add.at(change, (self._group[which], end + 1), -b.size[which])
        alive = np.cumsum(np.cumsum(change[::-1], axis=0)[::-1], axis=1)[:, : len(b.gradients)]
        need = np.where(alive > 0, alive + b.gradients, 0).max(axis=1)
        # While copies of one moment run: without what those behind make, with what goes at once.
        again = np.flatnonzero(copied)
        again = again[np.lexsort((again, wanted[again]))]
        moment = wanted[again]
        if len(again):
            so_far = np.cumsum(np.bincount(b.made[which], b.size[which], self._n)[again])
            later = so_far[np.searchsorted(moment, moment, side="right") - 1] - so_far
            replay = alive[:, moment] + (b.transient[again] - later + b.before[moment])
            replay[again < self._starts[: column + 1, None]] = 0
            need = np.maximum(need, replay.max(axis=1))
        return need.astype(np.int64)

    def _note_idle(self, idle: _Flags | None, mixed: _Flags, readers: list[int], made: int, copied: _Flags) -> None:
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
        b, starts, ends = self._buffers, self._starts, self._ends
        moments = np.arange(len(b.gradients))
        stored, handed, need = (np.zeros(len(ends), np.int64) for _ in range(3))
        near = max(1, round(_NEAR * self._n))
        for k, (start, end) in enumerate(zip(starts, ends)):
            which = (b.made >= start) & (b.made < end) & b.saved
            stored[k] = b.size[which].sum()
            crossing = (b.made < end) & (b.made >= min(start, end - near)) & (b.last_storing >= end)
            handed[k] = b.size[crossing & ~b.saved].sum()
            alive = (moments[:, None] <= b.last_used[which]) @ b.size[which]
            used = (moments[:, None] <= b.last_used[which]).any(axis=1)
            need[k] = np.where(used, alive + b.gradients, 0).max()
        again = self._most(self._alive(b.saved, self._n) + self._alive(~b.saved, b.last_read))
        return Keeps(stored, handed, np.maximum(need, np.diagonal(again)))

    def _alive(self, which: NDArray[np.bool_], until: Ints | int) -> Ints:
        """For each start and block the bytes of buffers made from start on, up to there, until some block."""
        b, change = self._buffers, np.zeros((len(self._starts), self._n + 2), np.int64)
        end = np.broadcast_to(until, len(which))[which]
        np.add.at(change, (self._group[which], b.made[which]), b.size[which])
        np.add.at(change, (self._group[which], end + 1), -b.size[which])
        return np.cumsum(np.cumsum(change[::-1], axis=0)[::-1], axis=1)[:, : self._n]

    def _most(self, found: Ints) -> Ints:
        """For each start and end the most from start to end."""
        inside = np.where(np.arange(self._n) >= self._starts[:, None], found, 0)
        return np.maximum.accumulate(inside, axis=1)[:, self._ends - 1]

    def _made_between(self, which: NDArray[np.bool_]) -> Ints:
        """For each start and end the bytes of buffers made between, of those that a column of `which` names."""
        b, columns = self._buffers, np.arange(len(self._ends))
        before = np.concatenate([np.zeros((1, len(columns)), np.int64), np.cumsum(which * b.size[:, None], axis=0)])
        first, last = (np.searchsorted(b.made, each) for each in (self._starts, self._ends))
        return before[last, columns][None] - before[first]
