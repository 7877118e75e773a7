"""The least peak of a plan without nesting: the least bytes held in each state say what fits under a trial peak."""

import numpy as np

from tfgc.strategies._flat_plans import FlatPlans, Path


def least_peak(plans: FlatPlans) -> Path | None:
    """The path of least peak; None if none is under the limit of the plans."""
    low, (best, _) = 0, _fit(plans, plans.limit)
    while best is not None and low < plans.peak(best):
        found, following = _fit(plans, (low + plans.peak(best) - 1) // 2)
        if found is None:
            low = following
        else:
            best = found
    return best


def _fit(plans: FlatPlans, peak: float) -> tuple[Path | None, float]:
    """The path to the end that holds least under `peak`, None if there is none; and the next peak that may do."""
    following = np.inf
    held = np.full(len(plans), np.inf)
    came_from = np.full((len(plans), 2), -1)
    held[0] = 0
    for state, steps in plans.steps.items():
        if held[state] < np.inf:
            new, needs = held[state] + steps.added, held[state] + steps.need
            following = min(following, needs.min(where=needs > peak, initial=np.inf))
            # Several rows can lead to one state: row 0 keeps its node, later ones run it again. Of these the last one,
            # which runs in slices if any does, holds least.
            for rows in (slice(0, 1), slice(1, None)):
                target = steps.target[rows]
                # A selective segment holds more than the same one without products.
                better = (needs[rows] <= peak) & (new[rows] < held[target]) & ~steps.selective[rows]
                held[target[better]] = new[rows][better]
                came_from[target[better], 0] = state
                came_from[target[better], 1] = np.arange(len(new))[rows][better]
    ends = [end for end, need in plans.ends.items() if held[end] + need <= peak]
    if not ends:
        return None, min([following, *(held[end] + need for end, need in plans.ends.items())])
    path: Path = []
    state = min(ends, key=held.__getitem__)
    while state:
        state, row = map(int, came_from[state])
        path.append((state, row))
    return path[::-1], following
