"""What work is counted in, and which of it a selective replay leaves out.

Such a replay takes over dear products of the first run. A segment with a node that cannot be copied (a
`tf.random.Generator`, a branch or a loop) is run again as a whole.
"""

import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tfgc._core.buffers import Buffers
from tfgc._core.graph import Graph


class NodeWork(NamedTuple):
    """Work of one node."""

    forward: float
    backward: float
    selective: float  # forward, in a replay that takes over dear products


def node_work(graph: Graph) -> tuple[list[NodeWork], str]:
    """The work of each node, and its unit: seconds if every node was timed, else flops."""
    if all(cost.seconds is not None for cost in graph.costs):
        return [_work(c.seconds or 0.0, c.backward_seconds or 0.0, c.selective_seconds) for c in graph.costs], "s"
    return [_work(c.flops, c.backward_flops, c.selective_flops) for c in graph.costs], "flop"


def _work(forward: float, backward: float, selective: float | None) -> NodeWork:
    return NodeWork(forward, backward, forward if selective is None else selective)


def takes_over_products(b: Buffers, positions: Sequence[int]) -> bool:
    """Whether a selective replay of these nodes, one after the other, takes over anything."""
    first, behind = positions[0], positions[-1] + 1
    uncopied = b.graph.once(_uncopied_before)
    return b.selective_before[behind] > b.selective_before[first] and uncopied[behind] == uncopied[first]


def _uncopied_before(graph: Graph) -> list[int]:
    """For each position how many nodes before it are not copied."""
    return [0, *itertools.accumulate(not cost.copied for cost in graph.costs)]


def least_work(excess: int, pieces: Iterable[tuple[float, int]]) -> float:
    """The least work of making so many bytes again, of pieces (work per byte, bytes) or parts of them."""
    least = 0.0
    for work_per_byte, size in sorted(pieces):
        if excess <= 0:
            break
        least += work_per_byte * min(size, excess)
        excess -= size
    return least
