"""Where the true median of noisy figures lies, whatever their distribution.

The interval between two order statistics holds it with a probability that is binomial (David & Nagaraja, Order
Statistics, 2003, 7.1).
"""

import math
from collections.abc import Sequence

_MISSES = 0.1  # how often the true median may lie outside


def of_median(values: Sequence[float]) -> tuple[float, float] | None:
    """The narrowest such interval that holds it in 9 of 10 runs; of fewer than five values the least and the largest.

    None for fewer than two.

    >>> of_median([3.0, 1.0, 2.0, 5.0, 4.0]), of_median([1.0])
    ((1.0, 5.0), None)
    """
    count, left_out = len(values), 0
    if count < 2:
        return None
    outside = 2.0  # twice the ways of so many coins to show at most as many heads as values are left out at each end
    while (outside + 2 * math.comb(count, left_out + 1)) / 2**count <= _MISSES:
        left_out += 1
        outside += 2 * math.comb(count, left_out)
    ordered = sorted(values)
    return ordered[left_out], ordered[-1 - left_out]
