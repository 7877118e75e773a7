"""Two searches for the largest batch that fits: where a look is cheap, and where each look is a run.

What a step needs is nearly linear in its batch, not quite: the allocator's chunks make it jump, by up to a
few per cent down as well as up. So a straight line through two batches says where to look next.
"""

from collections.abc import Callable

from tfgc._records.batch_limit import MOST
from tfgc._records.job import LargestBatch

FIRST = 16
# So many batches in a row must be predicted not to fit above the one that does.
ABOVE = 4  # each takes a trace
# Runs to confirm one way of training, at most, and with those that die without a figure; two or three are enough where
# predictions are good.
FIGURES, RUNS = 5, 8
# A batch that fits is confirmed by one that does not at most this part above, or one sample.
_CLOSE = 0.02


def largest_fitting(need: Callable[[int], tuple[int, int]], budget: int, above: int = ABOVE) -> int:
    """The largest batch that fits, 0 if a single sample does not.

    `need` gives for a batch what it needs, and a bound of that from below which never falls. `above` batches in a row
    must not fit above the one that is returned; none beyond `MOST` is looked at.
    """

    def fits(batch: int) -> bool:
        return need(batch)[0] <= budget

    if not fits(1):
        return 0
    low, high = _bracket(need, fits, budget)
    turn = 0
    while high - low > 1:
        turn += 1
        guess = (low + high) // 2 if turn % 3 == 0 else _on_line(need, low, high, budget)
        guess = min(max(guess, low + 1), high - 1)
        low, high = (guess, high) if fits(guess) else (low, guess)
    batch = low
    while batch < min(low + above, MOST):
        batch += 1
        needed, bound = need(batch)
        if bound > budget:
            break
        if needed <= budget:
            low = batch
    return low


def _bracket(need: Callable[[int], tuple[int, int]], fits: Callable[[int], bool], budget: int) -> tuple[int, int]:
    """A batch that fits and a larger one that does not; the latter may be beyond `MOST`."""
    low, high = 1, min(FIRST, MOST)
    before = low
    while fits(high):
        if high == MOST:
            return MOST, MOST + 1
        guess = _on_line(need, before, high, budget)
        before, low = low, high
        high = min(max(guess, low + 1 + low // 64), 64 * low, MOST)
    return low, high


def _on_line(need: Callable[[int], tuple[int, int]], first: int, second: int, budget: int) -> int:
    """The batch whose need meets the budget, on a line through two others."""
    (a, _), (b, _) = need(first), need(second)
    return MOST if b <= a else int(first + (budget - a) * (second - first) / (b - a))


def confirm(way: LargestBatch, budget: int, measure: Callable[[int], int | None]) -> tuple[int, int | None, bool]:
    """Measure around a predicted batch, at most `RUNS` times, until one fits and one just above it does not.

    `measure` gives the bytes that a batch takes, None if it ran out of memory. Returns the largest batch that fits
    (0: none), the least one that does not (None: none), and whether they are as close as they should be.
    """
    fits, fails, short = 0, MOST + 1, 0
    known: dict[int, int | None] = {}
    guess = max(1, way.batch_size)
    for _ in range(RUNS):
        known[guess] = count = measure(guess)
        if count is not None and count <= budget:
            fits = guess
        else:
            fails, short = guess, short + (count is None)
        if fails - fits <= _step(fits) or len(known) - short == FIGURES:
            break
        guess = _next(way, budget, known, fits, fails, short)
    return fits, None if fails > MOST else fails, fails - fits <= _step(fits)


def _step(batch: int) -> int:
    return max(1, int(batch * _CLOSE))


def _next(way: LargestBatch, budget: int, known: dict[int, int | None], fits: int, fails: int, short: int) -> int:
    """The batch to measure next, between one that fits and one that does not."""
    points = sorted((batch, count) for batch, count in known.items() if count is not None)
    step = _step(fits)
    if not points:
        # It ran out of memory without a figure: down by a tenth, a fifth, ...
        guess = fails - max(1, int(fails * 0.1 * 2 ** (short - 1)))
    else:
        # From the batch that fits, else from the least that does not.
        nearest, count = next((point for point in points if point[0] == fits), points[0])
        # What a sample takes: as predicted, scaled by how wrong the prediction was, or as two runs say.
        slope = way.sample_bytes * count / max(1, way.needed_bytes + (nearest - way.batch_size) * way.sample_bytes)
        if len(points) > 1 and points[-1][1] > points[0][1]:
            slope = (points[-1][1] - points[0][1]) / (points[-1][0] - points[0][0])
        guess = nearest + int((budget - count) // max(slope, 1))
    if fits in known and guess <= fits:
        guess = fits + step
    if fails in known and guess >= fails:
        guess = fails - step
    if fits in known and fails in known and len(known) > 3:
        guess = (fits + fails) // 2
    return min(max(guess, fits + 1), fails - 1)
