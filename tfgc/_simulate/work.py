"""The work of nodes, in floating-point operations."""

from collections.abc import Iterable
from typing import NamedTuple

from tfgc._core.graph import Graph


class NodeWork(NamedTuple):
    """Work of one node."""

    forward: float
    backward: float


def node_work(graph: Graph) -> list[NodeWork]:
    """The work of each node."""
    return [NodeWork(cost.flops, cost.backward_flops) for cost in graph.costs]


def least_work(excess: int, pieces: Iterable[tuple[float, int]]) -> float:
    """The least work of making so many bytes again, of pieces (work per byte, bytes) or parts of them."""
    least = 0.0
    for work_per_byte, size in sorted(pieces):
        if excess <= 0:
            break
        least += work_per_byte * min(size, excess)
        excess -= size
    return least
