"""The least work of a plan without nesting under a peak, by dynamic programming over memory in slots."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tfgc.strategies._flat_plans import FlatPlans, Path


def cheapest(plans: FlatPlans, peak: int, slots: int = 512) -> Path | None:
    """The path of least work under `peak` bytes, which are counted in slots: rounded up, so never too few.

    Exact where all byte counts are multiples of a slot; None if nothing fits.
    """
    counts = [column for steps in plans.steps.values() for column in (steps.need, steps.added)]
    common = int(np.gcd.reduce(np.concatenate([*counts, list(plans.ends.values())]).astype(np.int64)))
    slot = common if common and peak // common <= slots else peak / slots
    total = int(peak // slot)
    left = np.arange(total + 1)
    least_work = np.full((len(plans), total + 1), np.inf)
    choice = np.zeros((len(plans), total + 1), np.int32)
    for end, need in plans.ends.items():
        least_work[end, _slots(need, slot) :] = 0
    for state in reversed(plans.steps):
        steps = plans.steps[state]
        rest = left[None] - _slots(steps.added, slot)[:, None]
        fits = (rest >= 0) & (left[None] >= _slots(steps.need, slot)[:, None])
        work = least_work[steps.target[:, None], np.maximum(rest, 0)] + steps.work[:, None]
        work[~fits] = np.inf
        choice[state] = work.argmin(axis=0)
        least_work[state] = work[choice[state], left]
    if not np.isfinite(least_work[0, total]):
        return None
    path: Path = []
    state, room = 0, total
    while state not in plans.ends:
        row = int(choice[state, room])
        path.append((state, row))
        room -= int(_slots(plans.steps[state].added[row], slot))
        state = int(plans.steps[state].target[row])
    return path


def _slots(count: ArrayLike, slot: float) -> NDArray[np.int64]:
    """Byte counts in slots, rounded up."""
    return np.ceil(np.asarray(count) / slot - 1e-9).astype(int)
