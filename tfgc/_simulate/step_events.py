"""A training step as a list of events, in the order in which a plan runs them.

Each segment runs forward; then comes the loss; then, last segment first, each segment runs its backward pass, after
running again where it is recomputed, by its inner plan where it has one. Every run of a node makes new buffers. What a
replay makes and nobody reads is not run.

In mode `graph` a buffer is freed when nobody reads it any more. In mode `compiled` each segment is a compiled function
called from Python: what it receives (inputs, what a kept segment saved, upstream gradients), and what a kept one
returned in the first pass, stay until its backward pass returns, and gradients of weights and what the model returned
until the end of the step.
"""

import functools
import itertools
import types
from collections.abc import Mapping, Sequence

from tfgc._core.buffers import Buffers
from tfgc._core.cotangents import CotangentChanges
from tfgc._core.graph import Graph
from tfgc._core.segments import Segment
from tfgc._core.tensors import peak_of
from tfgc._simulate.host_copies import HostCopies
from tfgc._simulate.node_events import Event, NodeEvents, Run
from tfgc._simulate.work import takes_over_products


class StepEvents(NodeEvents):
    """The events of one step by the segments of a plan, and the bytes that the host stores at most.

    The `whole_step` of the graph says whether gradients of weights count. The link copies so many bytes to the host,
    and back, per unit of work; None: at once.
    """

    def __init__(
        self, graph: Graph, segments: Sequence[Segment], mode: str = "graph", link: float | None = None
    ) -> None:
        super().__init__(graph, compiled=mode == "compiled")
        self._host = HostCopies(self.events, self.sizes, self.buffers, segments)
        self._run(segments, {number: self.new(0) for number in range(len(graph.inputs))})
        recomputes = any(segment.mode == "recompute" for segment in segments)
        # There updates of weights wait for readers (`_framework.in_place_updates`); elsewhere they may write a copy.
        self.updates_in_place: bool = recomputes and not self.compiled
        if graph.whole_step and graph.early_update and not self.compiled:
            self._hold_early_updates(recomputes)
        self.host_bytes = self._host.bytes
        if link is not None:
            self._host.take_time(link)

    def _hold_early_updates(self, wait: bool) -> None:
        """Let what updates compute of slots and weights alone be there until the gradients of the weights are.

        If they `wait` (`waiting_updates`), it is there from a gradient to the next one: an update takes time.
        """
        graph = self.graph
        last = {event.position: event for event in self.events if event.phase == "backward"}
        gradients = [event for event in self.events if last.get(event.position) is event]
        for event, following in itertools.zip_longest(gradients, gradients[1:]):
            cost = graph.costs[event.position]
            buffer = self.new(round(graph.early_update * (cost.gradient_bytes + cost.table_bytes)))
            start, end = (event, following or event) if wait else (self.events[0], event)
            start.results += (buffer,)
            end.reads.append(buffer)

    @property
    def repeats_work(self) -> bool:
        """Whether a replay does any; else the step is the plain one, whatever its plan calls the segments."""
        return any(event.phase == "replay" and event.work for event in self.events)

    @functools.cached_property
    def freed(self) -> list[list[int]]:
        """For each event the buffers that no later event makes or reads."""
        last: dict[int, int] = {}
        for when, event in enumerate(self.events):
            last.update(dict.fromkeys([*event.makes, *event.results, *event.reads], when))
        freed: list[list[int]] = [[] for _ in self.events]
        for buffer, when in last.items():
            freed[when].append(buffer)
        return freed

    def _run(
        self,
        segments: Sequence[Segment],
        held: Mapping[int, int],
        replay: bool = False,
        products: Mapping[int, tuple[int, int]] = types.MappingProxyType({}),
    ) -> None:
        """Run segments forward and backward, with the copies `held` of buffers made outside of them; else see `Run`."""
        b, position = self.buffers, self.graph.position
        parts = [[position[name] for name in segment.nodes] for segment in segments]
        inside = [i for part in parts for i in part]
        runs = b.replayed(inside) if replay else inside
        pending = b.pending_gradient_bytes[max(inside) + 1] + self.pending if replay else 0
        run = Run({**held}, {}, "replay" if replay else "forward", pending, {**products})
        starts: list[int] = []
        for segment, part in zip(segments, parts):
            starts.append(len(self.events))
            selective = segment.selective and takes_over_products(b, part)
            for i in part:
                if i in runs:
                    self.forward(i, run, part, segment.mode == "keep")
                    if selective:
                        self.store(i, run)
        if not replay:
            self.loss(run)
        first = len(self.events) - 1
        for segment, part, start in zip(*map(reversed, (segments, parts, starts))):
            outside, products = self._outside(part, run), {i: run.products[i] for i in part if i in run.products}
            if segment.offload:
                outside = self._host.moved(outside, start, min(first, len(self.events) - 1))
            first = len(self.events)
            if segment.mode == "keep":
                for i in reversed(part):
                    self.backward(i, run)
            else:
                inner = segment.inner.segments if segment.inner else (Segment(segment.nodes, "keep"),)
                self._run(inner, outside, replay=True, products=products)
            if self.compiled and not replay:
                given = outside.values() if segment.mode == "recompute" else _saved(b, part, run)
                returned = _returned(b, part, run, segment.mode == "keep")
                staying = [*given, *itertools.chain(*products.values()), *returned]
                backward = self.events[first:]
                _hold(b, backward, segment.mode == "keep")
                self.events.append(_return(b, part, staying, backward, self.pending))
        if self.compiled and not replay:
            # Loops, Keras's among them, hold what the model returned, for metrics.
            self.events[-1].reads.extend(run.held[number] for number in b.graph_outputs)

    def _outside(self, part: Sequence[int], run: Run) -> dict[int, int]:
        """The copies of the buffers that a segment reads from outside."""
        b = self.buffers
        inside = {number for i in part for number in b.outputs[i]}
        read = [number for i in part for number in (*b.inputs[i], *b.saved[i])]
        return {number: run.held[number] for number in read if number in run.held and number not in inside}


def _saved(b: Buffers, part: Sequence[int], run: Run) -> list[int]:
    """The copies of the buffers that a kept segment saved for its backward pass."""
    numbers = [run.held[number] for i in part for number in b.saved[i]]
    return numbers + [run.internal[i] for i in part if i in run.internal]


def _returned(b: Buffers, part: Sequence[int], run: Run, keep: bool) -> list[int]:
    """What a segment returned and somebody holds: the caller what the model returns, a tape all of a kept segment."""
    made = [number for i in part for number in b.outputs[i]]
    held = (n for n in made if n in b.graph_outputs or (keep and set(b.readers[n]).difference(part)))
    return [run.held[number] for number in held]


def _hold(b: Buffers, events: Sequence[Event], keeps: bool) -> None:
    """Let the backward pass of these `events` leave upstream gradients, and what a kept segment saved, as they are."""
    made: set[int] = set()
    for one in events:
        sums, new, ended = one.cotangents
        made.update(number for number, _ in (*sums, *new))
        traces, takes = b.graph.costs[one.position].held_backward_traces, bool(set(ended) - made)
        if one.phase == "backward" and traces and (keeps or takes):
            one.byte_trace = traces[keeps + 2 * takes - 1]
            one.extra_bytes += peak_of(one.byte_trace) - b.backward_peak[one.position]


def _return(b: Buffers, part: Sequence[int], held: list[int], events: Sequence[Event], pending: int) -> Event:
    """The return of a backward pass of these `events`, until which `held` and the upstream gradients stay."""
    made: set[int] = set()
    upstream: list[int] = []
    upstream_bytes = 0
    for one in events:
        one.extra_bytes += upstream_bytes
        sums, new, ended = one.cotangents
        made.update(number for number, _ in (*sums, *new))
        staying = [number for number in ended if number not in made]
        upstream_bytes += sum(b.cotangent_bytes[number] for number in staying)
        upstream += staying
        one.cotangents = CotangentChanges(sums, new, tuple(number for number in ended if number in made))
    extra = b.pending_gradient_bytes[part[0]] + upstream_bytes + pending
    return Event(part[0], "return", held, [], extra, cotangents=CotangentChanges(ended=tuple(upstream)))
