"""The plan without nesting of least peak, and those of least work at each peak, by dynamic programming."""

from collections.abc import Iterable
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tfgc.strategies._flat_plans import FlatPlans, Path

Found = TypeVar("Found")
# Of memory, where bytes are counted in slots.
SLOTS = 512


def least_peak(plans: FlatPlans) -> Path | None:
    """The path of least peak; None if none is under the limit of the plans.

    Of the steps that keep the peak that of least work is taken, estimated by slots: exact where all byte counts are
    multiples of a slot. Where they are not, the path of the least peaks from each state on may have less work.
    """
    least = _LeastPeaks(plans)
    above, work = least.above, least.work
    if above[0] > plans.limit:
        return None
    by_slots = _LeastWork(plans, int(above[0]))
    left, works = above[0], 0.0

    def row_at(state: int) -> int:
        nonlocal left, works
        steps = plans.steps[state]
        fits = np.maximum(steps.need, steps.added + above[steps.target]) <= left
        rest = np.minimum(work[steps.target], by_slots.work(steps.target, np.maximum(left - steps.added, 0)))
        row = int(np.where(fits, steps.work + rest, np.inf).argmin())
        left, works = left - steps.added[row], works + steps.work[row]
        return row

    path = plans.path(row_at)
    return path if works <= work[0] else least.path()


def least_peak_bytes(plans: FlatPlans) -> float:
    """The least peak of all paths; infinite if there is none. Found without counting memory in slots."""
    return float(_LeastPeaks(plans).above[0])


def front(plans: FlatPlans, most: int) -> list[Path]:
    """The paths of least work at each number of slots up to `most` bytes at which it falls, fewest first.

    Byte counts are rounded to the nearest slot: each path is one that should need what it is found for. Exact where all
    of them are multiples of a slot.
    """
    found = _LeastWork(plans, most)
    falls = found.of_all < np.concatenate([[np.inf], found.of_all[:-1]])
    return [found.path(room) for room in np.flatnonzero(falls).tolist()]


def spread(found: list[Found], most: int) -> list[Found]:
    """At most so many, evenly spaced, with the first and the last."""
    return [found[place] for place in np.rint(np.linspace(0, len(found) - 1, min(most, len(found)))).astype(int)]


def slot_bytes(counts: Iterable[ArrayLike], most: int) -> float:
    """Bytes of a slot: what all counts are multiples of, if that makes no more than `SLOTS` of so many bytes."""
    common = int(np.gcd.reduce(np.concatenate([*counts]).astype(np.int64)))
    return common if common and most // common <= SLOTS else max(1, most / SLOTS)


class _LeastPeaks:
    """The least peak from each state on, exactly.

    What the rest of a path needs on top of the bytes held before it depends on the state alone, so that the least of
    the rest is known from the last state on: `above` is that peak, on top of the bytes held in the state, `work` the
    work of the path to it.
    """

    def __init__(self, plans: FlatPlans) -> None:
        self._plans = plans
        self._rows: dict[int, int] = {}
        self.above = np.full(len(plans.states), np.inf)
        self.work = np.zeros(len(plans.states))
        self.above[list(plans.ends)] = list(plans.ends.values())
        for state in reversed(plans.steps):
            steps = plans.steps[state]
            peaks = np.maximum(steps.need, steps.added + self.above[steps.target])
            works = steps.work + self.work[steps.target]
            row = self._rows[state] = int(np.lexsort((works, peaks))[0])
            self.above[state], self.work[state] = peaks[row], works[row]

    def path(self) -> Path:
        """The path of a whole plan."""
        return self._plans.path(self._rows.__getitem__)


class _LeastWork:
    """The least work from each state on, by the slots of memory left there; `of_all`: of a whole plan, by slots."""

    def __init__(self, plans: FlatPlans, peak: int) -> None:
        counts = [column for steps in plans.steps.values() for column in (steps.need, steps.added)]
        self._slot = slot_bytes([*counts, list(plans.ends.values())], peak)
        self._plans = plans
        left = np.arange(int(peak // self._slot) + 1)
        least_work = np.full((len(plans.states), len(left)), np.inf)
        self._choice = np.zeros((len(plans.states), len(left)), np.int32)
        for end, need in plans.ends.items():
            least_work[end, self._in_slots(need) :] = 0
        for state in reversed(plans.steps):
            steps = plans.steps[state]
            rest = left[None] - self._in_slots(steps.added)[:, None]
            fits = (rest >= 0) & (left[None] >= self._in_slots(steps.need)[:, None])
            work = least_work[steps.target[:, None], np.maximum(rest, 0)] + steps.work[:, None]
            work[~fits] = np.inf
            self._choice[state] = work.argmin(axis=0)
            least_work[state] = work[self._choice[state], left]
        self._least_work: NDArray[np.float64] = least_work
        self.of_all = least_work[0]

    def _in_slots(self, count: ArrayLike) -> NDArray[np.int64]:
        return np.rint(np.asarray(count) / self._slot).astype(int)

    def work(self, states: NDArray[np.int64], left: NDArray[np.float64]) -> NDArray[np.float64]:
        """The least work from each of some states on, with so many bytes left."""
        return self._least_work[states, (left / self._slot + 1e-9).astype(int)]

    def path(self, room: int) -> Path:
        """The path of least work of a whole plan in so many slots."""

        def row_at(state: int) -> int:
            nonlocal room
            row = int(self._choice[state, room])
            room -= int(self._in_slots(self._plans.steps[state].added[row]))
            return row

        return self._plans.path(row_at)
