"""The copies to the host and back of segments that store their inputs there.

A copy to the host begins with the segment's first run, one back with the backward pass of the segment after it, ahead
of need. Each direction of the link moves one buffer at a time. Until a copy has arrived on the host its buffer stays on
the device; a replay waits for what has not come back, which counts as work.
"""

import dataclasses
from collections.abc import Mapping, Sequence

from tfgc._core.buffers import Buffers
from tfgc._core.segments import Phase, Segment


@dataclasses.dataclass(slots=True)
class Event:
    """One run of a node in one direction."""

    position: int  # of the node
    phase: Phase
    reads: list[int]  # buffers, numbered as in `StepEvents.sizes`
    makes: list[int]  # the same
    extra_bytes: int  # at most meanwhile, besides what was there: what the node allocates, and cotangents
    work: float = 0


@dataclasses.dataclass(frozen=True)
class _Copies:
    """What one segment stores on the host: buffers, and the events where it is stored, fetched and needed."""

    buffers: tuple[int, ...]
    stored_at: int
    fetched_at: int
    needed_at: int


class HostCopies:
    """The copies of one step. They are added to its events, what is fetched to the sizes of its buffers."""

    def __init__(self, events: list[Event], sizes: list[int], buffers: Buffers, segments: Sequence[Segment]) -> None:
        self._events, self._sizes = events, sizes
        self._copies: list[_Copies] = []
        self._on_device = on_device(buffers, segments)

    def moved(self, outside: Mapping[int, int], stored_at: int, fetched_at: int) -> dict[int, int]:
        """The copies of buffers to read in a backward pass that is next to come, some fetched from the host."""
        moved = [number for number in outside if number not in self._on_device]
        fetched = range(len(self._sizes), len(self._sizes) + len(moved))
        self._sizes += [self._sizes[outside[number]] for number in moved]
        event = self._events[fetched_at]
        event.makes.extend(fetched)
        event.extra_bytes += sum(self._sizes[buffer] for buffer in fetched)  # What is made counts from the next one on.
        stored = tuple(outside[number] for number in moved)
        self._copies.append(_Copies(stored, stored_at, fetched_at, len(self._events)))
        return {**outside, **dict(zip(moved, fetched))}

    def take_time(self, link: float) -> None:
        """Let the copies take the time that the link needs: so many bytes in each direction per unit of work."""
        now = out_free = back_free = 0.0
        on_host: dict[int, float] = {}  # by buffer, when its copy is there
        back: dict[int, float] = {}  # by event, when all that it needs is back
        for i, event in enumerate(self._events):
            for copies in self._copies:
                if i == copies.stored_at:
                    for buffer in copies.buffers:
                        on_host[buffer] = out_free = max(out_free, now) + self._sizes[buffer] / link
                if i == copies.fetched_at:
                    total = sum(self._sizes[buffer] for buffer in copies.buffers)
                    start = max(back_free, now, *(on_host[buffer] for buffer in copies.buffers))
                    back[copies.needed_at] = back_free = start + total / link
            event.work += max(0.0, back.get(i, 0.0) - now)
            event.reads += [buffer for buffer, when in on_host.items() if when > now]
            now += event.work

    @property
    def bytes(self) -> int:
        """What the host stores for the step at most."""
        return sum(self._sizes[buffer] for copies in self._copies for buffer in copies.buffers)


def on_device(b: Buffers, segments: Sequence[Segment]) -> set[int]:
    """The buffers that stay on the device: the graph's inputs, and what other segments store there."""
    position, stored = b.graph.position, set(range(len(b.graph.inputs)))
    for segment in segments:
        part = [position[name] for name in segment.nodes]
        if segment.mode == "keep":
            stored.update(number for i in part for number in b.saved[i])
        elif not segment.offload:
            made = {number for i in part for number in b.outputs[i]}
            stored |= {number for i in part for number in (*b.inputs[i], *b.saved[i])} - made
    return stored
