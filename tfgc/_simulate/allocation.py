"""What the allocator will report for a step: its bytes in use, chunks counted whole.

The events of a step are replayed on a model of TensorFlow's allocator, several steps in a row, since what one step
leaves behind decides where the next one's buffers go. An update of a weight writes a new buffer, as TensorFlow does
where somebody may still read the old one; where something is recomputed it waits for readers.
"""

import statistics
from collections.abc import Iterable, Iterator

from tfgc._simulate.bfc_allocator import Address, Allocator
from tfgc._simulate.node_events import Event
from tfgc._simulate.step_events import StepEvents
from tfgc._simulate.xla_heap import Lifetimes

_STEPS = 5


def peaks_allocated(step: StepEvents) -> tuple[int, int]:
    """The allocator's peak in bytes above what is in use between steps, the median over several steps; and the most.

    The most is that of all these steps, in bytes above weights and batch as they were asked for: their chunks are
    larger, and change with every update.
    """
    steps = list(_steps(step))
    return int(statistics.median(peak for _, peak in steps)), max(beyond + peak for beyond, peak in steps)


def needs(step: StepEvents) -> Iterator[int]:
    """What each of these steps needs, of which `peaks_allocated` returns the most; each is replayed when asked for."""
    return (beyond + peak for beyond, peak in _steps(step))


def heap_bytes(step: StepEvents) -> int:
    """What XLA lays out for a step, besides weights and batch: it updates weights in place."""
    lifetimes = Lifetimes()
    _AllocatorReplay(step, lifetimes).peak_of_step()
    return lifetimes.heap_bytes()


def _steps(step: StepEvents) -> Iterator[tuple[int, int]]:
    """What is in use before each step, beyond the request, and its peak. The first, which finds none, is left out."""
    replay = _AllocatorReplay(step, Allocator())
    replay.peak_of_step()
    for _ in range(_STEPS - 1):
        yield replay.beyond_request(), replay.peak_of_step()


class _AllocatorReplay:
    """Steps replayed on one allocator."""

    def __init__(self, step: StepEvents, allocator: Allocator | Lifetimes) -> None:
        self._events, self._graph, self._buffers = step, step.graph, step.buffers
        self._allocator = allocator
        self._peak = 0
        self._chunks: dict[int, list[Address]] = {}  # of each buffer
        self._cotangents: dict[int, Address] = {}
        self._weight_gradients: dict[int, list[Address]] = {}  # by position
        self._weights: dict[int, Address] = {}
        self._requested = 0
        if self._graph.xla:
            return
        self._weights.update((i, allocator.allocate(c.gradient_bytes)) for i, c in enumerate(self._graph.costs))
        batch = [spec.bytes(self._graph.batch_size) for spec in self._graph.inputs.values()]
        for size in batch:
            self._allocator.allocate(size)
        self._requested = sum(batch) + sum(cost.gradient_bytes for cost in self._graph.costs)

    def beyond_request(self) -> int:
        """What is in use between steps, above weights and batch as they were asked for."""
        return self._allocator.in_use - self._requested

    def peak_of_step(self) -> int:
        """Replay one step; return its peak above what was in use before."""
        base = self._peak = self._allocator.in_use
        self._chunks, self._cotangents, self._weight_gradients = {}, {}, {}
        for event, freed in zip(self._events.events, self._events.freed):
            if event.phase in ("forward", "replay"):
                self._forward(event)
            else:
                self._backward(event)
            for buffer in freed:
                self._free(self._chunks.pop(buffer, ()))
        self._free(self._cotangents.values())
        for position in list(self._weight_gradients):
            self._update(position)
        return self._peak - base

    def _update(self, position: int) -> None:
        """Write the weights of a node, to a new buffer if they may be read still, and free their gradient."""
        if position in self._weights and not self._events.updates_in_place:
            new = self._allocator.allocate(self._graph.costs[position].gradient_bytes)
            self._allocator.free(self._weights[position])
            self._weights[position] = new
        self._free(self._weight_gradients.pop(position))

    def _allocate(self, size: int) -> Address:
        address = self._allocator.allocate(size)
        self._peak = max(self._peak, self._allocator.in_use)
        return address

    def _place(self, size: int, *free: "_Chunks") -> Address:
        """A chunk of that size, from the first of `free` that has one, else a new one."""
        for chunks in free:
            address = chunks.take(size)
            if address is not None:
                return address
        return self._allocate(size)

    def _free(self, addresses: Iterable[Address]) -> None:
        for address in addresses:
            self._allocator.free(address)

    def _trace(self, event: Event, upstream: "_Chunks") -> "_Chunks":
        """Replay the byte trace of an event, which may free `upstream` gradients; return the chunks that are left."""
        chunks, overwritten = _Chunks(), event.overwritten
        for size in event.byte_trace:
            if size > 0 and overwritten is not None and self._events.sizes[overwritten] == size:
                chunks.append((size, self._chunks.pop(overwritten)[0]))
                overwritten = None
            elif size > 0:
                chunks.append((size, self._allocate(size)))
            else:
                address = chunks.take(-size, newest=True)
                self._allocator.free(upstream.take(-size) if address is None else address)
        return chunks

    def _forward(self, event: Event) -> None:
        chunks = self._trace(event, _Chunks())
        for cotangent, size in event.cotangents.new:
            self._cotangents[cotangent] = self._allocate(size)
        outputs = len(self._buffers.outputs[event.position])
        for buffer in event.makes[:outputs]:
            self._chunks[buffer] = [self._place(self._events.sizes[buffer], chunks)]
        for internal in event.makes[outputs:]:
            self._chunks[internal] = chunks.addresses()
            chunks.clear()
        self._free(chunks.addresses())
        for buffer in event.results:
            self._chunks[buffer] = [self._allocate(self._events.sizes[buffer])]

    def _backward(self, event: Event) -> None:
        sums, new, ended = event.cotangents
        for total, parts in sums:
            # Segments in slices end those from behind themselves.
            there = [self._cotangents.pop(part) for part in parts if part in self._cotangents]
            self._cotangents[total] = there[0] if there else None
            self._free(there[1:])
        for buffer in event.results:
            self._chunks[buffer] = [self._allocate(self._events.sizes[buffer])]
        if event.gradient_bytes:
            self._weight_gradients.setdefault(event.position, []).append(self._allocate(event.gradient_bytes))
        sizes = self._buffers.cotangent_bytes
        upstream = _Chunks((sizes[c], self._cotangents.pop(c)) for c in ended if c in self._cotangents)
        kept = []
        if event.phase == "loss" and self._events.compiled and event.byte_trace:
            kept = [self._allocate(size) for _, size in new]
        chunks = self._trace(event, upstream)
        if event.phase == "loss" and not event.byte_trace:
            chunks += self._overwritten(event)
        for cotangent, size in new:
            self._cotangents[cotangent] = self._place(size, chunks, upstream)
        self._free([*upstream.addresses(), *kept, *chunks.addresses()])
        if event.gradient_bytes and not self._events.compiled and not self._graph.late_updates:
            self._update(event.position)

    def _overwritten(self, event: Event) -> Iterator[tuple[int, Address]]:
        """The chunks of outputs that the gradient of a loss of unknown bytes is written over."""
        for number, buffer in zip(self._buffers.graph_outputs, event.reads):
            if number in self._buffers.overwritten_outputs and buffer in self._chunks:
                yield self._events.sizes[buffer], self._chunks.pop(buffer)[0]


class _Chunks(list[tuple[int, Address]]):
    """Chunks in use, as pairs (size, address), oldest first."""

    def take(self, size: int, newest: bool = False) -> Address:
        """Remove a chunk of that size and return its address; None if there is none, or if another pool serves it."""
        for i in reversed(range(len(self))) if newest else range(len(self)):
            if self[i][0] == size:
                return self.pop(i)[1]
        return None

    def addresses(self) -> list[Address]:
        return [address for _, address in self]
