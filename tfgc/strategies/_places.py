"""Where segments may start: everywhere, or in large graphs at some places."""

import heapq
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfgc._core.buffers import Buffers
from tfgc._core.graph import Graph
from tfgc.strategies._passes import Option, Options, Pass
from tfgc.strategies._search import Search

# Options that are looked at: each takes about 30 microseconds, and 20 where replays are nested. Where branches run side
# by side, passes that differ in what is held alone double with each place: so many of them are looked at.
_MOST, _MOST_NESTED, _ALIKE = 80_000, 400_000, 100


def searched(graph: Graph, limit: float, most: int, **how: Any) -> tuple[Search, dict[str, Any]]:
    """The search of the plans with segments from at most so many places on, fewer if these are too many to look at.

    The options of such a plan say `coarsened` if segments may not start everywhere. `how` is as in `Options`.
    """
    places = range(len(graph))
    while True:
        places = _merged(graph, places, most)
        found = _passes(len(graph), Options(graph, places, **how), limit, _MOST_NESTED if how.get("nested") else _MOST)
        if found is not None:
            return Search(graph, found), {"coarsened": len(places)} if len(places) < len(graph) else {}
        most = 2 * len(places) // 3


def _passes(end: int, options: Options, limit: float, most: int) -> dict[Pass, list[Option]] | None:
    """All passes that plans under a limit in bytes come to, with their options; None if there are too many."""
    # Longer ones come first, so that the fewest bytes that are held before a pass are known.
    root = Pass(0, end, frozenset(), True)
    found: dict[Pass, list[Option]] = {}
    least, waiting, count = {root: 0}, [(0, 0, root)], 0
    alike: Counter[tuple[int, ...]] = Counter()
    while waiting:
        *_, part = heapq.heappop(waiting)
        if part in found:
            continue
        found[part] = options.of(part, limit - least[part])
        for option in found[part]:
            for other, held in ((option.rest, least[part] + option.added), (option.replay, least[part])):
                if other is not None and held < least.get(other, math.inf):
                    least[other] = held
                    count += 1
                    heapq.heappush(waiting, (2 * (other.start - other.end) - other.first, count, other))
        count += len(found[part])
        alike[apart := (part.start, part.end, *part[3:])] += 1
        if count > most or alike[apart] > _ALIKE:
            return None
    return found


def _merged(graph: Graph, places: Sequence[int], limit: int) -> list[int]:
    """At most `limit` of the places where a segment may start, among them 0.

    One after the other that place is dropped whose two neighbours save least for the size of the cut between them, so
    that places with a small cut stay, and none of the remaining segments is much larger than the others.
    """
    b = Buffers.of(graph)
    saved = [1 + sum(b.size[x] for x in numbers) for numbers in b.saved]
    before = np.concatenate([[0], np.cumsum(saved)]).astype(float)
    ends = np.array([*places, len(graph)])
    while len(ends) - 1 > limit:
        joined = (before[ends[2:]] - before[ends[:-2]]) / (1 + np.take(graph.cut_bytes, ends[1:-1]))
        ends = np.delete(ends, 1 + int(joined.argmin()))
    return [int(place) for place in ends[:-1]]
