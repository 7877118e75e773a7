"""The search for the largest batch that fits, where each look is a trace of the step or a run of it.

What a step needs is nearly linear in its batch, so a straight line through two batches says where to look next.
"""

from collections.abc import Callable

from tfgc._records.batch_limit import MOST

# Runs that measure one way of training, at most, and with those that die without a figure; two or three are enough
# where predictions are good.
FIGURES, RUNS = 5, 8
# A batch that was run and fits is confirmed by one that does not at most this part above, or one sample.
_CLOSE = 0.02


def largest_fitting(
    need: Callable[[int], int | None], budget: int, first: int, fixed_bytes: int = 0, *, runs: bool = False
) -> tuple[int, int | None, bool]:
    """Look at batches, the `first` one first, until one fits and one just above it does not.

    Args:
        need: Gives the bytes of a batch, None if it ran out of memory.
        budget: Bytes that fit.
        first: The batch to look at first.
        fixed_bytes: What a step needs whatever its batch, as far as that is known.
        runs: Whether looks are runs, of which there are few: then 2 % above is close enough.

    Returns:
        The largest batch that fits (0: none), the least one that does not (None: none up to `MOST`), and whether they
        are as close as they should be.
    """
    fits, fails, guess = 0, MOST + 1, first
    known: dict[int, int] = {}
    died: set[int] = set()
    while True:
        count = need(guess)
        if count is None:
            died.add(guess)
        else:
            known[guess] = count
        if count is not None and count <= budget:
            fits = guess
        else:
            fails = guess
        step = max(1, int(fits * _CLOSE)) if runs else 1
        if fails - fits <= step or (runs and (len(known) == FIGURES or len(known) + len(died) == RUNS)):
            return fits, None if fails > MOST else fails, fails - fits <= step
        looks = len(known) + len(died)
        if not known:
            guess = fails - (fails * 2**looks) // 20  # down by a tenth, a fifth, ...
        elif fits > 0 and fails <= MOST and (looks % 3 == 0 or (fails in died and looks > 3)):
            guess = (fits + fails) // 2
        else:
            guess = _on_line(known, fits, budget, fixed_bytes)
        guess = max(fits + 1, min(max(guess, fits + step), fails - step))


def _on_line(known: dict[int, int], fits: int, budget: int, fixed_bytes: int) -> int:
    """The batch whose need meets the budget, on a line through those on either side of it, or the two nearest ones."""
    below = sorted(batch for batch in known if batch <= fits)
    above = sorted(batch for batch in known if batch > fits)
    one, *others = [*below[:-3:-1], *above[:2]] if not above or not below else [below[-1], above[0]]
    slope = (known[one] - fixed_bytes) / one
    if others and known[others[0]] != known[one]:
        slope = (known[others[0]] - known[one]) / (others[0] - one)
    return one + int((budget - known[one]) // slope) if slope > 0 else MOST
