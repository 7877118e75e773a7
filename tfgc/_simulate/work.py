"""What work is counted in."""

from tfgc._core.graph import Graph


def node_work(graph: Graph) -> tuple[list[tuple[float, float]], str]:
    """Forward and backward work of each node, and its unit: seconds if every node was timed, else flops."""
    if all(cost.seconds is not None for cost in graph.costs):
        return [(cost.seconds or 0.0, cost.backward_seconds or 0.0) for cost in graph.costs], "s"
    return [(cost.flops, cost.backward_flops) for cost in graph.costs], "flop"
