"""Cut kept segments so that each has the weights of one node: a compiled one gives all its gradients at once."""

from collections.abc import Iterator, Sequence

from tfgc._core.segments import Segment
from tfgc._tracing.keras_graph import Program


def cut(program: Program, segments: Sequence[Segment]) -> list[Segment]:
    """The segments, kept ones cut after each node with weights."""
    return [part for segment in segments for part in _parts(program, segment)]


def _parts(program: Program, segment: Segment) -> Iterator[Segment]:
    if segment.mode != "keep":
        yield segment
        return
    nodes: list[str] = []
    for name in segment.nodes:
        nodes.append(name)
        if name == segment.nodes[-1] or any(layer.trainable_weights for layer in program.layers([name])):
            yield Segment(tuple(nodes), "keep")
            nodes = []
