"""What work is counted in."""

from collections.abc import Iterable
from typing import NamedTuple

from tfgc._core.graph import Graph


class NodeWork(NamedTuple):
    """Work of one node.

    Attributes:
        forward, backward: Of its two passes.
        replay: Of its forward pass in a replay that takes over the small results of the first run, as all do but those
            that are split again.
        selective: Of its forward pass in a replay that takes over products with weights as well.
    """

    forward: float
    backward: float
    replay: float
    selective: float


def node_work(graph: Graph) -> tuple[list[NodeWork], str]:
    """The work of each node, and its unit: seconds if every node was timed, else flops."""
    if all(cost.seconds is not None for cost in graph.costs):
        return [
            _work(cost.seconds or 0.0, cost.backward_seconds or 0.0, cost.replay_seconds, cost.selective_seconds)
            for cost in graph.costs
        ], "s"
    return [
        _work(cost.flops, cost.backward_flops, cost.replay_flops, cost.selective_flops) for cost in graph.costs
    ], "flop"


def _work(forward: float, backward: float, replay: float | None, selective: float | None) -> NodeWork:
    replay = forward if replay is None else replay
    return NodeWork(forward, backward, replay, replay if selective is None else selective)


def least_work(excess: int, pieces: Iterable[tuple[float, int]]) -> float:
    """The least work of making so many bytes again, of pieces (work per byte, bytes) or parts of them."""
    least = 0.0
    for work_per_byte, size in sorted(pieces):
        if excess <= 0:
            break
        least += work_per_byte * min(size, excess)
        excess -= size
    return least
