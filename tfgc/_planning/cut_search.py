"""Cuts of least work for every number of bytes, by dynamic programming over places.

After Feng & Huang, CVPR 2021, and rotor (arXiv:1911.13214): what the rest of the segments needs on top of what is
stored depends on the place alone, and on what the segment there is, since segments add up (`cut_costs`). Exact for the
costs given, up to the size of a slot in which bytes are counted; O(p^2) steps over all slots for p places.
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


# What the segment from a place on is; + 1 where the buffer of the skip connection there is stored.
_RUN, _IDLE, _KEPT, _IDLE_OR_KEPT = 0, 2, 4, 6
_STATES = 8


def least_peak(costs: CutCosts) -> int:
    """The least peak of all cuts."""
    p, keeps = len(costs.places) - 1, costs.keeps
    above = np.full((_STATES, p + 1), np.inf)
    above[_KEPT:, p] = costs.begins
    for start in reversed(range(p)):
        for stored in (0, 1):
            stays = int(stored or not costs.goes_on[start])
            handed = keeps.handed[start] + min(above[_RUN + stays, start + 1], above[_IDLE + stays, start + 1])
            behind = min(above[_KEPT + stays, start + 1], handed)
            above[_KEPT + stored, start] = max(keeps.need[start], keeps.stored[start] + behind)
        for follows, runs in ((_RUN, costs.before_run), (_IDLE_OR_KEPT, costs.before_keep)):
            followers = _Followers(costs, start, follows != _RUN)
            column = followers.ends - 1
            for stored in (0, 1):
                behind = above[follows + followers.stored[stored], followers.ends]
                found = np.maximum(runs.need[start, column], runs.stored[start, column] + followers.pays + behind)
                if not stored:
                    found[runs.reads_skip[start, column]] = np.inf
                idle = runs.is_idle[start, column]
                for state, which in ((_RUN + stored, ~idle), (_IDLE + stored, idle)):
                    above[state, start] = min(above[state, start], found[which].min(initial=np.inf))
        above[_IDLE_OR_KEPT:, start] = np.minimum(above[_IDLE:_KEPT, start], above[_KEPT:_IDLE_OR_KEPT, start])
    return int(min(above[_RUN, 0], above[_KEPT, 0]))


class Front:
    """The least work of the segments of some blocks for every number of bytes up to `most`."""

    def __init__(self, costs: CutCosts, most: int) -> None:
        self._costs, self._slot = costs, max(1.0, most / _SLOTS)
        p, slots = len(costs.places) - 1, int(most / self._slot) + 1
        self._left = np.arange(slots)
        self._work = np.full((_STATES, p + 1, slots), np.inf)
        self._work[_KEPT:, p, self._in_slots(costs.begins) :] = 0
        self._choices = np.zeros(
            (_STATES, p, slots), np.int32
        )  # where the segment ends, times states, + the state there
        self._takes = np.zeros((_STATES, p, slots), np.int32)  # slots
        for start in reversed(range(p)):
            self._keep(start)
            self._run(start)
            np.minimum(*self._work[_IDLE:_IDLE_OR_KEPT, start].reshape(2, 2, -1), out=self._work[_IDLE_OR_KEPT:, start])
        self._best = np.minimum(self._work[_RUN, 0], self._work[_KEPT, 0])

    def _in_slots(self, count: ArrayLike) -> NDArray[np.int64]:
        return np.rint(np.asarray(count) / self._slot).astype(np.int64)

    def _keep(self, start: int) -> None:
        keeps, work = self._costs.keeps, self._work
        need, kept, handed = self._in_slots([keeps.need[start], keeps.stored[start], keeps.handed[start]])
        adds = np.array([kept + handed, kept + handed, kept])
        room = self._left - adds[:, None]
        for stored in (0, 1):
            stays = int(stored or not self._costs.goes_on[start])
            states = np.array([_RUN, _IDLE, _KEPT]) + stays
            behind = np.take_along_axis(work[states, start + 1], np.maximum(room, 0), axis=1)
            behind[(room < 0) | (self._left < need)] = np.inf
            row = behind.argmin(axis=0)
            work[_KEPT + stored, start] = behind.min(axis=0)
            self._choices[_KEPT + stored, start] = _STATES * (start + 1) + states[row]
            self._takes[_KEPT + stored, start] = adds[row]

    def _run(self, start: int) -> None:
        costs = self._costs
        for follows, runs in ((_RUN, costs.before_run), (_IDLE_OR_KEPT, costs.before_keep)):
            followers = _Followers(costs, start, follows != _RUN)
            needs = self._in_slots(runs.need[start])
            for stored in (0, 1):
                column = followers.ends - 1
                fits = (needs[column] < len(self._left)) & ((stored == 1) | ~runs.reads_skip[start, column])
                chosen = np.flatnonzero(fits)
                ends, column = followers.ends[chosen], column[chosen]
                behind = follows + followers.stored[stored][chosen]
                adds = self._in_slots(runs.stored[start, column] + followers.pays[chosen])
                room = self._left - adds[:, None]
                found = self._work[behind[:, None], ends[:, None], np.maximum(room, 0)]
                found += runs.work[start, column][:, None]
                found[(room < 0) | (self._left < needs[column][:, None])] = np.inf
                idle = runs.is_idle[start, column]
                for state, rows in ((_RUN + stored, np.flatnonzero(~idle)), (_IDLE + stored, np.flatnonzero(idle))):
                    if len(rows):
                        row = rows[found[rows].argmin(axis=0)]
                        best = found[row, self._left]
                        better = best < self._work[state, start]
                        self._work[state, start, better] = best[better]
                        self._choices[state, start, better] = (_STATES * ends + behind)[row[better]]
                        self._takes[state, start, better] = adds[row[better]]

    def within(self, level: float) -> list[Segment] | None:
        """The segments of least work that need at most so many bytes, and no more than the least for that work."""
        room = min(int(level / self._slot), len(self._left) - 1)
        if room < 0 or self._best[room] == np.inf:
            return None
        room = int(np.searchsorted(-self._best, -self._best[room]))
        segments: list[Segment] = []
        places, work = self._costs.places, self._work
        start, state = 0, _RUN if work[_RUN, 0, room] <= work[_KEPT, 0, room] else _KEPT
        while start < len(places) - 1:
            if state >= _IDLE_OR_KEPT:
                idle, kept = state - _IDLE_OR_KEPT + _IDLE, state - _IDLE_OR_KEPT + _KEPT
                state = idle if work[idle, start, room] < work[kept, start, room] else kept
            end, behind = divmod(int(self._choices[state, start, room]), _STATES)
            room -= int(self._takes[state, start, room])
            keep = state >= _KEPT
            begin = segments.pop().start if keep and segments and segments[-1].keep else places[start]
            segments.append(Segment(begin, places[end], keep))
            start, state = end, behind
        return segments
