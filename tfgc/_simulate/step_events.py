"""A training step of a graph as a list of events, in the order in which a plan runs them.

Each segment runs forward; then comes the loss; then, last segment first, each segment runs its backward pass, after
running again where it is recomputed, by its inner plan where it has one. Every run of a node makes new buffers. What a
replay makes and nobody reads is not run. A buffer is freed when nobody reads it any more.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence

from tfgc._core.buffers import Buffers
from tfgc._core.graph import Graph
from tfgc._core.segments import Phase, Segment
from tfgc._simulate.host_copies import Event, HostCopies


@dataclasses.dataclass(slots=True)
class _Run:
    """A forward pass of some segments, or their replay."""

    held: dict[int, int]  # the copy of each buffer to read, by its number in `Buffers`
    phase: Phase  # `forward` or `replay`
    pending: int  # bytes of gradients that wait meanwhile


class StepEvents:
    """The events of one step by the segments of a plan, and the bytes that the host stores at most.

    The link copies so many bytes to the host, and back, per unit of work; None: at once.
    """

    def __init__(self, graph: Graph, segments: Sequence[Segment], link: float | None = None) -> None:
        self.graph, self.buffers = graph, Buffers.of(graph)
        self.events: list[Event] = []
        self.sizes: list[int] = []  # bytes of each buffer that the events make
        self._host = HostCopies(self.events, self.sizes, self.buffers, segments)
        self._run(segments, {number: self._new(0) for number in range(len(graph.inputs))})
        self.host_bytes = self._host.bytes
        if link is not None:
            self._host.take_time(link)

    @functools.cached_property
    def freed(self) -> list[list[int]]:
        """For each event the buffers that no later event makes or reads."""
        last: dict[int, int] = {}
        for when, event in enumerate(self.events):
            last.update(dict.fromkeys([*event.makes, *event.reads], when))
        freed: list[list[int]] = [[] for _ in self.events]
        for buffer, when in last.items():
            freed[when].append(buffer)
        return freed

    def _run(self, segments: Sequence[Segment], held: Mapping[int, int], replay: bool = False) -> None:
        """Run segments forward and backward, with the copies `held` of buffers made outside of them."""
        b, position = self.buffers, self.graph.position
        parts = [[position[name] for name in segment.nodes] for segment in segments]
        inside = [i for part in parts for i in part]
        runs = b.replayed(inside) if replay else inside
        pending = b.pending_gradient_bytes[max(inside) + 1] if replay else 0
        run = _Run({**held}, "replay" if replay else "forward", pending)
        starts: list[int] = []
        for part in parts:
            starts.append(len(self.events))
            for i in part:
                if i in runs:
                    self._forward(i, run)
        if not replay:
            outputs = [run.held[number] for number in b.graph_outputs]
            self.events.append(Event(len(self.graph) - 1, "loss", outputs, [], b.loss_bytes))
        first = len(self.events) - 1
        for segment, part, start in zip(*map(reversed, (segments, parts, starts))):
            outside = self._outside(part, run)
            if segment.offload:
                outside = self._host.moved(outside, start, min(first, len(self.events) - 1))
            first = len(self.events)
            if segment.mode == "keep":
                for i in reversed(part):
                    self._backward(i, run)
            else:
                self._run(segment.inner.segments if segment.inner else (Segment(segment.nodes, "keep"),), outside, True)

    def _new(self, size: int) -> int:
        self.sizes.append(size)
        return len(self.sizes) - 1

    def _forward(self, i: int, run: _Run) -> None:
        b = self.buffers
        reads, makes = [run.held[number] for number in b.inputs[i]], [self._new(b.size[n]) for n in b.outputs[i]]
        run.held.update(zip(b.outputs[i], makes))
        extra, work = b.forward_peak[i] + run.pending, self.graph.costs[i].flops
        self.events.append(Event(i, run.phase, reads, makes, extra, work))

    def _backward(self, i: int, run: _Run) -> None:
        b = self.buffers
        gradient_bytes = b.gradient_bytes_at[i]
        if gradient_bytes is not None:
            reads, extra = [run.held[number] for number in b.saved[i]], gradient_bytes + b.backward_peak[i]
            self.events.append(Event(i, "backward", reads, [], extra, self.graph.costs[i].backward_flops))

    def _outside(self, part: Sequence[int], run: _Run) -> dict[int, int]:
        """The copies of the buffers that a segment reads from outside."""
        b = self.buffers
        inside = {number for i in part for number in b.outputs[i]}
        read = [number for i in part for number in (*b.inputs[i], *b.saved[i])]
        return {number: run.held[number] for number in read if number in run.held and number not in inside}
