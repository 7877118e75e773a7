"""The events of a segment in slices of the batch: what is inside needs a share, what goes in and out does not.

Of all that a node makes, saves and works with, the share of the largest slice counts. Outputs are joined in buffers of
the whole batch, and so are the gradients of inputs, which are there from the first slice on, as the upstream gradients
are to the last. The gradients of a slice with respect to weights are added to a sum, so that both are there at once.
Those that are products of rows are made at the end, from the joined rows of all slices, if all slices are of one size
and the step is traced for one batch. `fit` may trace it for any batch, and `train_step` in a `tf.function` for one, so
that in a graph the more of both counts.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tfgc._core.buffers import Buffers
from tfgc._core.cotangents import CotangentChanges
from tfgc._core.graph import Graph
from tfgc._core.segments import Phase
from tfgc._simulate.node_events import Event, NodeEvents, Run


def outputs(b: Buffers, part: Sequence[int]) -> list[int]:
    """The buffers that a segment makes and others read, or that the graph returns."""
    inside = set(part)
    made = (number for i in part for number in b.outputs[i])
    return [x for x in made if x in b.graph_outputs or not inside.issuperset([*b.readers[x], *b.savers[x]])]


def cotangents(b: Buffers, part: Sequence[int]) -> tuple[list[tuple[int, int]], tuple[int, ...]]:
    """The cotangents that a segment hands to those before it, with their bytes; and those from behind that it ends."""
    handed: dict[int, int] = {}
    made: set[int] = set()
    inside: set[int] = set()  # those made of nothing from behind
    ended: list[int] = []
    for i in reversed(part):
        sums, new, done = b.cotangent_changes[i]
        # A sum takes over the buffer of its first part.
        own = {total: b.cotangent_bytes[total] for total, parts in sums if inside.issuperset(parts)} | dict(new)
        handed |= own
        inside |= own.keys()
        made.update(number for number, _ in (*sums, *new))
        gone = [*(number for _, parts in sums for number in parts), *done]
        ended += [number for number in gone if number not in made]
        for number in gone:
            handed.pop(number, None)
    return list(handed.items()), tuple(ended)


def share(size: int, samples: int | None, slices: int) -> int:
    """Bytes of the largest slice, rounded up. Nine samples in eight slices are five slices, of up to two."""
    largest, samples = (1, slices) if samples is None else (-(-samples // slices), samples)
    return -(-size * largest // samples)


class WeightGradients(NamedTuple):
    """Bytes of a node's gradients of weights while slices run."""

    of_a_slice: int  # those of a slice, which are added to sums
    joined: int  # sums and rows of all slices, which are there to the end
    perhaps: int  # sums that are there while slices run, if the graph takes no rows
    products: int  # what is made of the rows at the end


def weight_gradients(graph: Graph, part: Sequence[int], slices: int, compiled: bool = False) -> list[WeightGradients]:
    """Those of each node of a segment in slices; `compiled` segments are traced for one batch."""
    samples = graph.batch_size
    even = samples is not None and samples % -(-samples // slices) == 0
    found = []
    for cost in (graph.costs[i] for i in part):
        whole = cost.gradient_bytes * graph.whole_step
        products, rows = (cost.product_bytes, cost.row_bytes) if even and graph.whole_step else (0, 0)
        perhaps = 0 if compiled else products - rows
        found.append(WeightGradients(whole - products * compiled, whole - products + rows, perhaps, products))
    return found


class SlicedEvents:
    """Makes the events of one segment. They are not added to those of the `step`; their buffers are."""

    def __init__(self, step: NodeEvents, part: Sequence[int], slices: int) -> None:
        self._step, self._part, self._slices = step, part, slices

    def forward(self, run: Run) -> list[Event]:
        """Those of the first pass."""
        b, part = self._step.buffers, self._part
        joined = {number: self._step.new(b.size[number]) for number in outputs(b, part)}
        held = {**run.held}
        events = [self._run(i, held, run.phase, run.pending, b.forward_peak[i], keep=False) for i in part]
        self._join(events, tuple(joined.values()))
        run.held.update(joined)
        return events

    def backward(self, outside: dict[int, int]) -> list[Event]:
        """Those of the replay and the backward pass, which reads `outside`."""
        b, part, graph = self._step.buffers, self._part, self._step.graph
        handed, ended = cotangents(b, part)
        gradients = dict(zip(part, weight_gradients(graph, part, self._slices, self._step.compiled)))
        waiting = b.pending_gradient_bytes[max(part) + 1]
        base = waiting + sum(size for _, size in handed) + self._step.pending
        passing = waiting - sum(b.cotangent_bytes[number] for number in ended)
        held, runs = {**outside}, b.replayed(part)
        internal: dict[int, int] = {}
        events = []
        for i in part:
            if i in runs:
                event = self._run(i, held, "replay", base, b.saving_peak[i], keep=True)
                internal[i] = event.makes[-1]
                events.append(event)
        for i in reversed(part):
            alive = b.gradient_bytes_at[i]
            if alive is None:
                continue
            weights = gradients[i].of_a_slice
            whole = graph.costs[i].gradient_bytes * graph.whole_step
            inside = self._share(max(0, alive - whole - passing) + b.backward_peak[i])
            reads = [held[number] for number in b.saved[i]] + ([internal[i]] if i in internal else [])
            byte_trace = tuple(map(self._share, graph.costs[i].backward_trace))
            work = self._step.work[i].backward
            event = Event(i, "backward", reads, [], base + inside + weights, byte_trace, work, gradient_bytes=weights)
            events.append(event)
        if events:
            joined = self._step.new(sum(weights.joined for weights in gradients.values()))
            perhaps = self._step.new(sum(weights.perhaps for weights in gradients.values()))
            self._join(events, (joined, perhaps))
            events[0].cotangents = CotangentChanges(new=tuple(handed))
            last = events[-1].cotangents  # which may be those of the first
            events[-1].cotangents = CotangentChanges(last.sums, last.new, (*ended, *last.ended))
            events[-1].reads.extend(outside.values())
            events += self._products({i: weights.products for i, weights in gradients.items()}, joined, base)
            if self._step.compiled or graph.late_updates:
                self._step.pending += graph.whole_step * sum(graph.costs[i].gradient_bytes for i in part)
        return events

    def _join(self, events: Sequence[Event], buffers: tuple[int, ...]) -> None:
        """Let buffers be there in all of the events: each runs once more when the first slice has been written."""
        events[0].results = buffers
        events[0].extra_bytes += sum(self._step.sizes[buffer] for buffer in buffers)
        events[-1].reads.extend(buffers)

    def _products(self, products: dict[int, int], rows: int, base: int) -> Iterator[Event]:
        """Those of the products of rows: nothing orders them, so all may be there at once."""
        left = sum(products.values())
        for i, product in products.items():
            if product:
                left -= product
                trace = (left,) if left else ()
                yield Event(i, "backward", [rows], [], base + left + product, trace, gradient_bytes=product)

    def _run(self, i: int, held: dict[int, int], phase: Phase, pending: int, peak: int, keep: bool) -> Event:
        """A run of a node on a slice."""
        b, cost, work = self._step.buffers, self._step.graph.costs[i], self._step.work[i].forward
        reads = [held[number] for number in b.inputs[i]]
        makes = [self._step.new(self._share(b.size[number])) for number in b.outputs[i]]
        held.update(zip(b.outputs[i], makes))
        if keep:
            makes.append(self._step.new(self._share(b.internal_bytes[i])))
        byte_trace = tuple(map(self._share, cost.forward_saving_trace if keep else cost.forward_trace))
        return Event(i, phase, reads, makes, self._share(peak) + pending, byte_trace, work)

    def _share(self, size: int) -> int:
        """Bytes of a slice; negative ones as the positive ones that they free."""
        of_a_slice = share(abs(size), self._step.graph.batch_size, self._slices)
        return of_a_slice if size > 0 else -of_a_slice
