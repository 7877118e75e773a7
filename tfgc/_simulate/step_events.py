"""A training step as a list of events, in the order in which a plan runs them.

Each segment runs forward; then comes the loss; then, last segment first, each segment runs its backward pass, after
running again where it is recomputed, by its inner plan where it has one. Every run of a node makes new buffers. What a
replay makes and nobody reads is not run. Segments in slices of the batch have events of their own (`sliced_events`).

In mode `graph` a buffer is freed when nobody reads it any more. In mode `compiled` each segment is a compiled function
called from Python: what it receives (inputs, what a kept segment saved, upstream gradients), and what a kept one
returned in the first pass, stay until its backward pass returns, and gradients of weights until the end of the step.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence

from tfgc._core.buffers import Buffers
from tfgc._core.graph import Graph
from tfgc._core.plan import Segment
from tfgc._simulate import compiled_returns
from tfgc._simulate.event import Event, Run, freed_after
from tfgc._simulate.host_copies import HostCopies
from tfgc._simulate.sliced_events import SlicedEvents
from tfgc._simulate.work import node_work


class StepEvents:
    """The events of one step.

    Args:
        graph: A `Graph`; its `whole_step` says whether gradients of weights count.
        segments: The segments of a `Plan` for it.
        mode: `graph`, or `compiled` for compiled segments called from Python.
        link: Bytes that are copied to the host, and back, per unit of work; None: at once.

    Attributes:
        graph, buffers: The graph and its `Buffers`.
        events: List of `Event`.
        sizes: Bytes of each buffer that they make.
        work: `NodeWork` of each node.
        unit: What work is counted in.
        compiled: Whether segments are compiled one by one and called from Python.
        host_bytes: What the host stores at most.
    """

    def __init__(
        self, graph: Graph, segments: Sequence[Segment], mode: str = "graph", link: float | None = None
    ) -> None:
        self.graph, self.buffers = graph, Buffers.of(graph)
        self.events: list[Event] = []
        self.sizes: list[int] = []
        self.work, self.unit = graph.once(node_work)
        self.compiled = mode == "compiled"
        self._pending = 0  # gradients of weights that wait for the end of a compiled step
        self._host = HostCopies(self.events, self.sizes, self.buffers, segments)
        inputs = {number: self._new(0) for number in range(len(graph.inputs))}
        self._run(segments, inputs)
        self.host_bytes = self._host.bytes
        if link is not None:
            self._host.take_time(link)

    @functools.cached_property
    def freed(self) -> list[list[int]]:
        """For each event the buffers that no later event makes or reads."""
        return freed_after(self.events)

    def _new(self, size: int) -> int:
        self.sizes.append(size)
        return len(self.sizes) - 1

    def _run(
        self, segments: Sequence[Segment], held: Mapping[int, int], replay: bool = False, takes_over: bool = False
    ) -> None:
        """Run segments forward and backward; `held` maps buffers made outside of them to the copies to read."""
        b, position = self.buffers, self.graph.position
        parts = [[position[name] for name in segment.nodes] for segment in segments]
        inside = [i for part in parts for i in part]
        runs = b.replayed(inside) if replay else inside
        pending = b.pending_gradient_bytes[max(inside) + 1] + self._pending if replay else 0
        run = Run({**held}, {}, "replay" if replay else "forward", pending, takes_over)
        results: list[list[int]] = [[] for _ in segments]
        starts: list[int] = []
        for segment, part, kept in zip(segments, parts, results):
            starts.append(len(self.events))
            if segment.chunks > 1:
                self.events += SlicedEvents(self.graph, self.sizes, part, segment.chunks).forward(run)
                continue
            stores = not replay and segment.takes_over_results
            for i in part:
                if i in runs:
                    self._forward(i, run, part, segment.mode == "keep")
                    if stores and b.result_bytes[i]:
                        stored = self._new(b.result_bytes[i])
                        self.events[-1].results = (stored,)
                        kept.append(stored)
        if not replay:
            self._loss(run)
        first = len(self.events) - 1
        for segment, part, kept, start in zip(*map(reversed, (segments, parts, results, starts))):
            outside = self._outside(part, run)
            if segment.offload:
                outside = self._host.moved(outside, start, min(first, len(self.events) - 1))
            first = len(self.events)
            if segment.mode == "keep":
                for i in reversed(part):
                    self._backward(i, run)
            elif segment.chunks > 1:
                sliced = SlicedEvents(self.graph, self.sizes, part, segment.chunks)
                self.events += sliced.backward(outside, self._pending)
            else:
                inner = (
                    segment.inner.segments
                    if segment.inner
                    else (dataclasses.replace(segment, mode="keep", offload=False),)
                )
                self._run(inner, outside, replay=True, takes_over=not replay and segment.takes_over_results)
            if kept:
                self.events[-1].reads.extend(kept)
            if self.compiled and not replay:
                given = outside.values() if segment.mode == "recompute" else compiled_returns.saved(b, part, run)
                staying = [*given, *kept, *compiled_returns.returned(b, part, run, segment.mode == "keep")]
                self.events.append(compiled_returns.event(b, part, staying, self.events[first:], self._pending))

    def _outside(self, part: Sequence[int], run: Run) -> dict[int, int]:
        """The copies of the buffers that a segment reads from outside."""
        b = self.buffers
        inside = {number for i in part for number in b.outputs[i]}
        read = [number for i in part for number in (*b.inputs[i], *b.saved[i])]
        return {number: run.held[number] for number in read if number in run.held and number not in inside}

    def _forward(self, i: int, run: Run, part: Sequence[int], keep: bool) -> None:
        b, cost = self.buffers, self.graph.costs[i]
        peak, overwritten = (b.saving_peak[i] if keep else b.forward_peak[i]), None
        if b.in_place[i] and i - 1 in part:
            peak -= min(peak, sum(b.size[number] for number in b.outputs[i]))
            overwritten = run.held[next(number for number in b.inputs[i] if number in b.outputs[i - 1])]
        reads = [run.held[number] for number in b.inputs[i]]
        makes = [self._new(b.size[number]) for number in b.outputs[i]]
        run.held.update(zip(b.outputs[i], makes))
        if keep:
            run.internal[i] = self._new(b.internal_bytes[i])
            makes.append(run.internal[i])
        self.events.append(
            Event(
                position=i,
                phase=run.phase,
                reads=reads,
                makes=makes,
                extra_bytes=peak + run.pending,
                byte_trace=cost.forward_saving_trace if keep else cost.forward_trace,
                work=self.work[i].replay if run.takes_over else self.work[i].forward,
                overwritten=overwritten,
            )
        )

    def _loss(self, run: Run) -> None:
        b, graph = self.buffers, self.graph
        extra = b.loss_bytes
        if self.compiled and graph.loss:
            # The tape holds the outputs, so that nothing overwrites them.
            extra += b.pending_gradient_bytes[-1]
        outputs = [run.held[number] for number in b.graph_outputs]
        changes = b.cotangent_changes[len(graph)]
        event = Event(len(graph) - 1, "loss", outputs, [], extra, graph.loss, cotangents=changes)
        if b.overwritten_outputs:
            event.overwritten = run.held[b.overwritten_outputs[0]]
        self.events.append(event)

    def _backward(self, i: int, run: Run) -> None:
        b, cost = self.buffers, self.graph.costs[i]
        gradient_bytes = b.gradient_bytes_at[i]
        if gradient_bytes is None:
            return
        reads = [run.held[number] for number in b.saved[i]]
        reads += [run.internal[i]] if i in run.internal else []
        weight_gradients = cost.gradient_bytes if self.graph.whole_step else 0
        self.events.append(
            Event(
                position=i,
                phase="backward",
                reads=reads,
                makes=[],
                extra_bytes=gradient_bytes + b.backward_peak[i] + self._pending,
                byte_trace=cost.backward_trace,
                work=self.work[i].backward,
                cotangents=b.cotangent_changes[i],
                gradient_bytes=weight_gradients,
            )
        )
        if self.compiled:
            self._pending += weight_gradients
