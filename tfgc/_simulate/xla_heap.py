"""How XLA lays out the buffers of a step: all of them ahead, in one heap, by size.

The largest buffer gets its place first, then the next one the smallest gap that is free as long as it lives
(`GlobalDecreasingSizeBestFitHeap` in openxla/xla). What is left between them makes the heap larger than the bytes that
are alive at once.
"""

import dataclasses

import numpy as np

_ALIGNED = 256


class Lifetimes:
    """Stands for an allocator, and notes from when to when each buffer lives; `in_use` are the bytes alive."""

    def __init__(self) -> None:
        self.in_use = 0
        self._buffers: list[_Buffer] = []
        self._now = 0

    def allocate(self, count: int) -> int | None:
        """Note a buffer of `count` bytes; return its number, or None if it takes no memory."""
        self._now += 1
        if not count:
            return None
        self.in_use += count
        self._buffers.append(_Buffer(count, self._now))
        return len(self._buffers) - 1

    def free(self, number: int | None) -> None:
        """Note that a buffer is read no more."""
        self._now += 1
        if number is not None:
            self.in_use -= self._buffers[number].size
            self._buffers[number].end = self._now

    def heap_bytes(self) -> int:
        """The size of the heap; what was not freed lives to the end."""
        starts, ends, places, tops = np.zeros((4, len(self._buffers)), np.int64)
        spans = [(-(-b.size // _ALIGNED) * _ALIGNED, b.start, b.end or self._now + 1) for b in self._buffers]
        spans.sort(key=lambda span: (-span[0], span[1] - span[2], span[1]))
        for i, (size, start, end) in enumerate(spans):
            meanwhile = np.flatnonzero((starts[:i] < end) & (ends[:i] > start))
            place = _place(size, places[meanwhile], tops[meanwhile])
            starts[i], ends[i], places[i], tops[i] = start, end, place, place + size
        return int(tops.max(initial=0))


@dataclasses.dataclass(slots=True)
class _Buffer:
    size: int
    start: int
    end: int = 0


def _place(size: int, places: np.ndarray, tops: np.ndarray) -> int:
    """Where the smallest gap between buffers begins that has room, or above all of them."""
    if not len(places):
        return 0
    order = np.argsort(places, kind="stable")
    begins = np.concatenate([[0], np.maximum.accumulate(tops[order])])
    gaps = places[order] - begins[:-1]
    fitting = np.flatnonzero(gaps >= size)
    return int(begins[fitting[gaps[fitting].argmin()]] if len(fitting) else begins[-1])
