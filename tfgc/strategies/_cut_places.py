"""Where segments may start: everywhere, or in large graphs at some places."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfgc import strategies
from tfgc._core.buffers import Buffers
from tfgc._core.graph import Graph
from tfgc._core.plan import Plan
from tfgc.strategies._flat_plans import FlatPlans

# A segment that grows by a node takes 15 microseconds: so many are seconds.
_MOST_GROWN, _FEW = 300_000, 50


def places(graph: Graph) -> list[int]:
    """All positions where a segment may start."""
    return list(range(len(graph)))


def searched(graph: Graph, limit: int, places: Sequence[int], **options: Any) -> FlatPlans:
    """The plans with segments from some places on; if not all can be searched, from a dozen of them.

    For searches that take long for each step.
    """
    plans = FlatPlans(graph, limit, places, **options)
    return FlatPlans(graph, limit, dozen(graph, places), **options) if plans.searched else plans


def of(plan: Plan) -> list[int]:
    """The positions where the segments of a plan start."""
    return [0, *itertools.accumulate(len(segment.nodes) for segment in plan.segments[:-1])]


def merged(graph: Graph, places: Sequence[int], limit: int, small: int = 1) -> list[int]:
    """At most `limit` of the places where a segment may start, among them 0.

    One after the other that place is dropped whose two neighbours save least for the size of the cut between them, so
    that places with a small cut stay, and none of the remaining segments is much larger than the others. `small` are
    bytes of a cut that hardly count.
    """
    b = Buffers.of(graph)
    saved = [1 + sum(b.size[x] for x in numbers) for numbers in b.saved]
    before = np.concatenate([[0], np.cumsum(saved)]).astype(float)
    ends = np.array([*places, len(graph)])
    while len(ends) - 1 > limit:
        joined = (before[ends[2:]] - before[ends[:-2]]) / (small + np.take(graph.cut_bytes, ends[1:-1]))
        ends = np.delete(ends, 1 + int(joined.argmin()))
    return [int(place) for place in ends[:-1]]


def dozen(graph: Graph, places: Sequence[int]) -> list[int]:
    """So few of the places that a search may look at all sets of what segments from there on store."""
    return merged(graph, places, 12, 1 + max(graph.cut_bytes) // 64)


def with_optimal(graph: Graph, limit: int) -> tuple[list[int], list[int], Plan]:
    """All places, about `limit` of them with those of the plan of least peak, and that plan."""
    every, optimal = places(graph), strategies.get("optimal")(graph)
    return every, sorted({*merged(graph, every, limit), *of(optimal)}), optimal


def affordable(graph: Graph, places: Sequence[int], most: int, limit: int) -> list[int]:
    """At most `limit` of the places, few enough that their segments are costed within seconds.

    Segments start in states, and where many branches run side by side, a place has many of them. They are counted at
    few places; at k times as many there are about k ** 1.5 times as many (MobileNet to NASNet and MIRNet).
    """
    few = merged(graph, places, _FEW)
    if len(few) < min(limit, len(places)):
        segments = sum(len(steps.need) for steps in FlatPlans(graph, most, few).steps.values())
        grown = segments / _FEW * len(graph)  # each over half of the nodes, from half of the places on
        limit = min(limit, max(_FEW, int(_FEW * (_MOST_GROWN / grown) ** (2 / 3))))
    return merged(graph, places, limit)
