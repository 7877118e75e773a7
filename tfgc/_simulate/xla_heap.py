"""How XLA lays out the buffers of a step: all of them ahead, in one heap, by size.

The largest buffer gets its place first, then the next one the smallest gap that is free as long as it lives
(`GlobalDecreasingSizeBestFitHeap` in openxla/xla). What is left between them makes the heap larger than the bytes that
are alive at once.
"""

import numpy as np

from tfgc._simulate.requests import Requests

_ALIGNED = 256


def heap_bytes(requests: Requests) -> int:
    """The size of the heap for what comes and goes in a step; what is not freed lives to the end."""
    sizes: dict[int, int] = {}
    began: dict[int, int] = {}
    ended: dict[int, int] = {}
    for now, (number, size) in enumerate(requests.log):
        if size:
            sizes[number], began[number] = size, now
        else:
            ended[number] = now
    end = len(requests.log)
    spans = [(-(-size // _ALIGNED) * _ALIGNED, began[n], ended.get(n, end)) for n, size in sizes.items()]
    spans.sort(key=lambda span: (-span[0], span[1] - span[2], span[1]))
    starts, ends, places, tops = np.zeros((4, len(spans)), np.int64)
    for i, (size, start, end) in enumerate(spans):
        meanwhile = np.flatnonzero((starts[:i] < end) & (ends[:i] > start))
        place = _place(size, places[meanwhile], tops[meanwhile])
        starts[i], ends[i], places[i], tops[i] = start, end, place, place + size
    return int(tops.max(initial=0))


def _place(size: int, places: np.ndarray, tops: np.ndarray) -> int:
    """Where the smallest gap between buffers begins that has room, or above all of them."""
    if not len(places):
        return 0
    order = np.argsort(places, kind="stable")
    begins = np.concatenate([[0], np.maximum.accumulate(tops[order])])
    gaps = places[order] - begins[:-1]
    fitting = np.flatnonzero(gaps >= size)
    return int(begins[fitting[gaps[fitting].argmin()]] if len(fitting) else begins[-1])
