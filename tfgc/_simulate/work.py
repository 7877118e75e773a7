"""What work is counted in."""

from typing import NamedTuple

from tfgc._core.graph import Graph


class NodeWork(NamedTuple):
    """Work of one node.

    Attributes:
        forward, backward: Of its two passes.
        replay: Of its forward pass in a replay that takes over the small results of the first run, as all do but those
            that are split again.
    """

    forward: float
    backward: float
    replay: float


def node_work(graph: Graph) -> tuple[list[NodeWork], str]:
    """The work of each node, and its unit: seconds if every node was timed, else flops."""
    if all(cost.seconds is not None for cost in graph.costs):
        return [
            NodeWork(cost.seconds or 0.0, cost.backward_seconds or 0.0, _or(cost.replay_seconds, cost.seconds or 0.0))
            for cost in graph.costs
        ], "s"
    return [
        NodeWork(cost.flops, cost.backward_flops, _or(cost.replay_flops, cost.flops)) for cost in graph.costs
    ], "flop"


def _or(replay: float | None, forward: float) -> float:
    return forward if replay is None else replay
