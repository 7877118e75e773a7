"""Of labels with three figures, those that no other one beats in all three."""

import bisect
from collections.abc import Sequence


def unbeaten(host: Sequence[float], work: Sequence[float]) -> list[int]:
    """Positions of the pairs for which no pair before has both at most as large.

    The front of a set of points sorted by a first coordinate: Kung, Luccio & Preparata, "On Finding the Maxima of a Set
    of Vectors", 1975.

    >>> unbeaten([3, 1, 2, 4, 1], [5, 7, 6, 5, 6])
    [0, 1, 2, 4]
    """
    found = []
    hosts: list[float] = []  # the front so far, hosts ascending, works descending
    works: list[float] = []
    for i, (h, w) in enumerate(zip(host, work)):
        place = bisect.bisect_right(hosts, h)
        if place and works[place - 1] <= w:
            continue
        found.append(i)
        first = place - 1 if place and hosts[place - 1] == h else place
        last = place
        while last < len(works) and works[last] >= w:
            last += 1
        hosts[first:last], works[first:last] = [h], [w]
    return found
