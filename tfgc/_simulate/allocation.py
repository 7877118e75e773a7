"""What a step asks the allocator for, from its events; and what the allocator will report: chunks, counted whole.

An update of a weight writes a new buffer, as TensorFlow does where somebody may still read the old one; where something
is recomputed it waits for readers.
"""

import statistics
from collections.abc import Iterable, Iterator
from typing import TypeAlias

from tfgc._simulate import chunk_peaks, xla_heap
from tfgc._simulate.node_events import Event
from tfgc._simulate.requests import Requests
from tfgc._simulate.step_events import StepEvents

_STEPS = 4
# Of a buffer in `Requests`; None for one that takes no memory.
_Number: TypeAlias = int | None


def peaks_allocated(step: StepEvents) -> tuple[int, int]:
    """The allocator's peak in bytes above what is in use between steps, the median over several steps; and the most.

    The most is that of all that the step may need, above the weights as they were asked for: their chunks are larger.
    """
    requests = requested(step)
    peaks = [peak for _, peak in chunk_peaks.in_a_row(requests, _STEPS)]
    return int(statistics.median(peaks)), max(_needs(step, requests))


def needs(step: StepEvents) -> Iterator[int]:
    """What the step may need, of which `peaks_allocated` returns the most; each is found when asked for.

    Plain steps, which shares of a budget refer to, are taken as they are where nothing else was allocated before.
    """
    yield from _needs(step, requested(step))


def _needs(step: StepEvents, requests: Requests) -> Iterator[int]:
    return chunk_peaks.from_states(requests) if step.repeats_work else map(sum, chunk_peaks.in_a_row(requests, _STEPS))


def heap_bytes(step: StepEvents) -> int:
    """What XLA lays out for a step, besides weights and batch: it updates weights in place."""
    return xla_heap.heap_bytes(requested(step))


def requested(step: StepEvents) -> Requests:
    """What a step asks an allocator for."""
    return _Requested(step).of_step()


class _Requested:
    """Notes what the events of a step ask for."""

    def __init__(self, step: StepEvents) -> None:
        self._events, self._graph, self._buffers = step, step.graph, step.buffers
        self._chunks: dict[int, list[_Number]] = {}  # of each buffer
        self._cotangents: dict[int, _Number] = {}
        self._weight_gradients: dict[int, list[_Number]] = {}  # by position
        # The weights of each node come first, so that they have the numbers of positions.
        weights = [cost.gradient_bytes for cost in self._graph.costs]
        batch = [spec.bytes(self._graph.batch_size) for spec in self._graph.inputs.values()]
        self._requests = Requests() if self._graph.xla else Requests(weights, batch)

    def of_step(self) -> Requests:
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
        return self._requests

    def _update(self, position: int) -> None:
        """Write the weights of a node, to a new buffer if they may be read still, and free their gradient."""
        if self._requests.there and not self._events.updates_in_place:
            self._requests.move(position)
        self._free(self._weight_gradients.pop(position))

    def _place(self, size: int, *free: "_Chunks") -> _Number:
        """A chunk of that size, from the first of `free` that has one, else a new one."""
        for chunks in free:
            number = chunks.take(size)
            if number is not None:
                return number
        return self._requests.allocate(size)

    def _free(self, numbers: Iterable[_Number]) -> None:
        for number in numbers:
            self._requests.free(number)

    def _trace(self, event: Event, upstream: "_Chunks") -> "_Chunks":
        """Replay the byte trace of an event, which may free `upstream` gradients; return the chunks that are left."""
        chunks, overwritten = _Chunks(), event.overwritten
        for size in event.byte_trace:
            if size > 0 and overwritten is not None and self._events.sizes[overwritten] == size:
                chunks.append((size, self._chunks.pop(overwritten)[0]))
                overwritten = None
            elif size > 0:
                chunks.append((size, self._requests.allocate(size)))
            else:
                number = chunks.take(-size, newest=True)
                self._requests.free(upstream.take(-size) if number is None else number)
        return chunks

    def _forward(self, event: Event) -> None:
        chunks = self._trace(event, _Chunks())
        for cotangent, size in event.cotangents.new:
            self._cotangents[cotangent] = self._requests.allocate(size)
        outputs = len(self._buffers.outputs[event.position])
        for buffer in event.makes[:outputs]:
            self._chunks[buffer] = [self._place(self._events.sizes[buffer], chunks)]
        for internal in event.makes[outputs:]:
            self._chunks[internal] = chunks.numbers()
            chunks.clear()
        self._free(chunks.numbers())
        for buffer in event.results:
            self._chunks[buffer] = [self._requests.allocate(self._events.sizes[buffer])]

    def _backward(self, event: Event) -> None:
        sums, new, ended = event.cotangents
        for total, parts in sums:
            # Segments in slices end those from behind themselves.
            there = [self._cotangents.pop(part) for part in parts if part in self._cotangents]
            self._cotangents[total] = there[0] if there else None
            self._free(there[1:])
        for buffer in event.results:
            self._chunks[buffer] = [self._requests.allocate(self._events.sizes[buffer])]
        if event.gradient_bytes:
            self._weight_gradients.setdefault(event.position, []).append(self._requests.allocate(event.gradient_bytes))
        sizes = self._buffers.cotangent_bytes
        upstream = _Chunks((sizes[c], self._cotangents.pop(c)) for c in ended if c in self._cotangents)
        kept = []
        if event.phase == "loss" and self._events.compiled and event.byte_trace:
            kept = [self._requests.allocate(size) for _, size in new]
        chunks = self._trace(event, upstream)
        if event.phase == "loss" and not event.byte_trace:
            chunks += self._overwritten(event)
        for cotangent, size in new:
            self._cotangents[cotangent] = self._place(size, chunks, upstream)
        self._free([*upstream.numbers(), *kept, *chunks.numbers()])
        if event.gradient_bytes and not self._events.compiled and not self._graph.late_updates:
            self._update(event.position)

    def _overwritten(self, event: Event) -> Iterator[tuple[int, _Number]]:
        """The chunks of outputs that the gradient of a loss of unknown bytes is written over."""
        for number, buffer in zip(self._buffers.graph_outputs, event.reads):
            if number in self._buffers.overwritten_outputs and buffer in self._chunks:
                yield self._events.sizes[buffer], self._chunks.pop(buffer)[0]


class _Chunks(list[tuple[int, _Number]]):
    """Chunks in use, as pairs (size, number of a buffer), oldest first."""

    def take(self, size: int, newest: bool = False) -> _Number:
        """Remove a chunk of that size and return its number; None if there is none."""
        for i in reversed(range(len(self))) if newest else range(len(self)):
            if self[i][0] == size:
                return self.pop(i)[1]
        return None

    def numbers(self) -> list[_Number]:
        return [number for _, number in self]
