"""Pieces of a graph's order, as those who write strategies name them, as segments."""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from tfgc._core.graph import Graph
from tfgc._core.segments import Segment, Segmentation

# Positions of start and end, and a mode, or the pieces of the replay
Piece: TypeAlias = tuple[int, int, "str | Sequence[Piece]"]


def segments_of(
    graph: Graph, pieces: Iterable[Piece], plan: Callable[[tuple[Segment, ...]], Segmentation]
) -> tuple[Segment, ...]:
    """The segments of these pieces; `plan` makes the plan of a replay."""
    made = []
    for start, end, how in pieces:
        nodes = graph.nodes[start:end]
        obstacles = [f"{n.name!r}: {n.cost.obstacle}" for n in nodes if n.cost is not None and n.cost.obstacle]
        if obstacles:
            how = "keep"
        made.append(
            Segment(
                nodes=tuple(node.name for node in nodes),
                mode="keep" if how == "keep" else "recompute",
                inner=None if isinstance(how, str) else plan(segments_of(graph, how, plan)),
                obstacle=obstacles[0] if obstacles else None,
            )
        )
    return tuple(made)
