"""Cuts of least work for every number of bytes, by dynamic programming over places.

After Feng & Huang, CVPR 2021, and rotor (arXiv:1911.13214): what the rest of the segments needs on top of what is stored
depends on the place alone, since segments add up (`cut_costs`). Exact for the costs given, up to the size of a slot in
which bytes are counted; O(p^2) steps over all slots for p places.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tfgc._planning.cut_costs import CutCosts

_SLOTS = 512


class Segment(NamedTuple):
    """One of a plan: positions among the blocks, and whether it is kept."""

    start: int
    end: int
    keep: bool


class _Followers:
    """What may follow a recomputed segment from some place.

    Attributes:
        ends: Where the segment ends; twice where the buffer of a skip connection may be stored or not.
        pays: Bytes of that buffer where it is stored for it alone.
        stored: Whether it is stored, for a start whose own is not, and for one whose own is.
    """

    def __init__(self, costs: CutCosts, start: int, keep: bool) -> None:
        skips, places = costs.skips, costs.places
        ends = np.arange(start + 1, len(places))
        at = skips.at[ends]
        inside = (at >= 0) & (skips.made[ends] >= places[start])
        free = inside & (np.array(places[start + 1 :]) <= skips.first_read[ends]) & (not keep)
        twice = inside & ~free
        self.ends = np.concatenate([ends, ends[twice]])
        self.pays = np.concatenate([np.zeros(len(ends), np.int64), skips.bytes[ends[twice]]])
        chosen = np.ones(twice.sum(), bool)
        self.stored = [np.concatenate([each, chosen]) for each in ((at < 0) | free, ~twice)]


def least_peak(costs: CutCosts) -> int:
    """The least peak of all cuts."""
    p = len(costs.places) - 1
    above = np.full(
        (2, 2, p + 1), np.inf
    )  # by whether the segment from a place on is kept or idle, and whether the skip is stored
    above[1, :, p] = 0
    for start in reversed(range(p)):
        for stored in (0, 1):
            stays = stored or not costs.goes_on[start]
            handed = min(above[1, int(stays), start + 1], costs.keeps.handed[start] + above[0, int(stays), start + 1])
            above[1, stored, start] = max(costs.keeps.need[start], costs.keeps.stored[start] + handed)
        for follows, runs in enumerate((costs.before_run, costs.before_keep)):
            followers = _Followers(costs, start, follows == 1)
            ends = followers.ends
            for stored in (0, 1):
                behind = above[follows, followers.stored[stored].astype(int), ends]
                found = np.maximum(runs.need[start, ends - 1], runs.stored[start, ends - 1] + followers.pays + behind)
                if not stored:
                    found = np.where(runs.reads_skip[start, ends - 1], np.inf, found)
                idle = runs.is_idle[start, ends - 1]
                for kind, which in enumerate((~idle, idle)):
                    above[kind, stored, start] = min(above[kind, stored, start], found[which].min(initial=np.inf))
    return int(above[:, 0, 0].min())


class Front:
    """The least work of the segments of some blocks for every number of bytes up to `most`."""

    def __init__(self, costs: CutCosts, most: int) -> None:
        self._costs, self._slot = costs, max(1.0, most / _SLOTS)
        p, slots = len(costs.places) - 1, int(most / self._slot) + 1
        self._left = np.arange(slots)
        # Of each state: 2 if the segment is kept or idle, + 1 if the buffer of the skip connection is stored.
        self._work = np.full((4, p + 1, slots), np.inf)
        self._work[2:, p] = 0
        self._choices = np.zeros((4, p, slots), np.int32)  # 8 times where it ends + 4 if it is kept + the state there
        self._takes = np.zeros((4, p, slots), np.int32)  # slots
        for start in reversed(range(p)):
            self._keep(start)
            self._run(start)
        self._best = np.minimum(self._work[0, 0], self._work[2, 0])

    def _in_slots(self, count: ArrayLike) -> NDArray[np.int64]:
        return np.rint(np.asarray(count) / self._slot).astype(np.int64)

    def _keep(self, start: int) -> None:
        keeps, work = self._costs.keeps, self._work
        need, *adds = self._in_slots(
            [keeps.need[start], keeps.stored[start] + keeps.handed[start], keeps.stored[start]]
        )
        adds = np.array(adds)
        room = self._left - adds[:, None]
        for stored in (0, 1):
            stays = int(stored or not self._costs.goes_on[start])
            behind = np.take_along_axis(work[[stays, 2 + stays], start + 1], np.maximum(room, 0), axis=1)
            behind[(room < 0) | (self._left < need)] = np.inf
            row = behind.argmin(axis=0)
            work[2 + stored, start] = behind.min(axis=0)
            self._choices[2 + stored, start] = 8 * (start + 1) + 4 + stays + 2 * row
            self._takes[2 + stored, start] = adds[row]

    def _run(self, start: int) -> None:
        costs = self._costs
        for follows, runs in enumerate((costs.before_run, costs.before_keep)):
            followers = _Followers(costs, start, follows == 1)
            needs = self._in_slots(runs.need[start])
            for stored in (0, 1):
                column = followers.ends - 1
                fits = (needs[column] < len(self._left)) & ((stored == 1) | ~runs.reads_skip[start, column])
                chosen = np.flatnonzero(fits)
                ends, column = followers.ends[chosen], column[chosen]
                behind = 2 * follows + followers.stored[stored][chosen]
                adds = self._in_slots(runs.stored[start, column] + followers.pays[chosen])
                room = self._left - adds[:, None]
                found = self._work[behind[:, None], ends[:, None], np.maximum(room, 0)]
                found += runs.work[start, column][:, None]
                found[(room < 0) | (self._left < needs[column][:, None])] = np.inf
                idle = runs.is_idle[start, column]
                for state, rows in ((stored, np.flatnonzero(~idle)), (2 + stored, np.flatnonzero(idle))):
                    if len(rows):
                        row = rows[found[rows].argmin(axis=0)]
                        best = found[row, self._left]
                        better = best < self._work[state, start]
                        self._work[state, start, better] = best[better]
                        self._choices[state, start, better] = (8 * ends + behind)[row[better]]
                        self._takes[state, start, better] = adds[row[better]]

    def within(self, level: float) -> list[Segment] | None:
        """The segments of least work that need at most so many bytes, and no more than the least for that work."""
        room = min(int(level / self._slot), len(self._left) - 1)
        if room < 0 or self._best[room] == np.inf:
            return None
        room = int(np.searchsorted(-self._best, -self._best[room]))
        segments: list[Segment] = []
        start, state, places = 0, 2 * int(self._work[2, 0, room] < self._work[0, 0, room]), self._costs.places
        while start < len(places) - 1:
            end, behind = divmod(int(self._choices[state, start, room]), 8)
            room -= int(self._takes[state, start, room])
            keep = behind >= 4
            begin = segments.pop().start if keep and segments and segments[-1].keep else places[start]
            segments.append(Segment(begin, places[end], keep))
            start, state = end, behind % 4
        return segments
