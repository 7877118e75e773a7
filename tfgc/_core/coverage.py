"""Whether segments run what a graph holds."""

from collections.abc import Iterable, Sequence

from tfgc._core.graph import Graph
from tfgc._core.segments import Segment
from tfgc._errors import PlanMismatchError


def check(graph: Graph, segments: Iterable[Segment], names: Sequence[str], done: set[str], whole: str) -> None:
    """Raise unless `segments` run each of `names` once, and after what it reads; `done` ran before."""
    known, left = set(names), set(names)
    for segment in segments:
        before = set(done)
        for name in segment.nodes:
            if name not in left:
                why = "is in it twice" if name in known else f"is not in the {whole.partition(' ')[0]}"
                raise PlanMismatchError(f"not a plan for this {whole}: node {name!r} {why}")
            for ref in graph.nodes[graph.position[name]].inputs:
                if ref.node not in done:
                    raise PlanMismatchError(f"not a valid plan: {name!r} would run before {ref.node!r}, which it reads")
            left.remove(name)
            done.add(name)
        if segment.inner is not None:
            check(graph, segment.inner.segments, segment.nodes, before, f"segment of a plan, {segment}")
    if left:
        raise PlanMismatchError(f"not a plan for this {whole}: it leaves out {next(n for n in names if n in left)!r}")
