"""The Pareto front of plans for loops in Python, where each segment is a compiled function."""

import dataclasses
from collections.abc import Iterable, Iterator

from tfgc._core.buffers import Buffers
from tfgc._core.graph import Graph
from tfgc._core.plan import Plan
from tfgc._core.segments import Segment
from tfgc.strategies._frontier import Frontier, Judged

# Nodes of a piece of a kept segment, at most.
_PIECES = (4, 1)


class CompiledFrontier(Frontier):
    """The front of all plans that one for graphs was made of, and of `others`.

    A function holds what it was given until it returns. So the best plans are tried with kept segments in pieces, too:
    they do the same work, in more calls, and hold less. Plans of the front for graphs stay a second choice, since a few
    fit where no plan of the front does: the allocator decides.
    """

    mode = "compiled"

    def __init__(self, front: Frontier, others: Iterable[Plan]) -> None:
        self._beside: list[Judged] = []
        of_little_use = set(map(id, front.given)).difference(map(id, front.plans_so_far))
        super().__init__(front.graph, [*front.given, *others], front.more, front.up_to)
        self._beside = [pair for pair in self._beside if id(pair[0]) not in of_little_use]

    def judged(self, plans: list[Plan]) -> list[Judged]:
        judged = super().judged(plans)
        self._beside += judged
        pieces = [piece for plan, _ in self.best(judged) for piece in _in_pieces(self.graph, plan)]
        return judged + super().judged(pieces)

    def work(self, judged: Judged) -> tuple[float, int]:
        """Of equal work, a plan of fewer segments is better."""
        return judged[1].work, len(judged[0].segments)

    def choices(self) -> list[Judged]:
        return sorted([*self.front, *self._beside], key=self.work)


def _in_pieces(graph: Graph, plan: Plan) -> Iterator[Plan]:
    """The plan in pieces of several sizes, as far as it has kept segments that are longer."""
    before = len(plan.segments)
    for size in _PIECES:
        segments = tuple(piece for segment in plan.segments for piece in _pieces(graph, segment, size))
        if len(segments) > before:
            before = len(segments)
            yield dataclasses.replace(plan, segments=segments)


def _pieces(graph: Graph, segment: Segment, size: int) -> Iterator[Segment]:
    may_start, nodes = Buffers.of(graph).may_start, segment.nodes
    if segment.mode != "keep" or segment.obstacle is not None:
        yield segment
        return
    start = 0
    for end in range(1, len(nodes) + 1):
        if end == len(nodes) or (end - start >= size and may_start[graph.position[nodes[end]]]):
            yield dataclasses.replace(segment, nodes=nodes[start:end])
            start = end
