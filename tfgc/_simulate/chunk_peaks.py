"""The allocator's peak in a step, in chunks, from several states that a process may have left it in.

What else was ever allocated decides where a step finds free chunks, and which of them are handed out whole: in a plan
for EfficientNetB0 a buffer of 12.6 MB took a chunk of 24.2 MB, an eighth of the step, in each step of one process.
No such state can be known ahead, so that some are tried.
"""

import random
from collections.abc import Iterator

from tfgc._simulate.bfc_allocator import Allocator
from tfgc._simulate.requests import Requests

# Of 40 plans for ten networks the highest peak from 16 was in the mean 0.6 % above that from 8.
_STATES = 8
_MOST_OTHERS = 3
_SIZES_OF_OTHERS = 18, 24  # 256 KiB to 16 MiB, as powers of 2


def in_a_row(requests: Requests, steps: int) -> Iterator[tuple[int, int]]:
    """Steps where nothing else was ever allocated: what is there beyond the request before each, and the peak above it.

    What one step leaves behind decides where the next one's buffers go. The first, which finds nothing, is left out.
    """
    played = _Played(requests, Allocator())
    played.peak()
    for _ in range(steps):
        yield played.beyond(), played.peak()


def from_states(requests: Requests) -> Iterator[int]:
    """The peaks of two steps in each state, above what is there before as it was asked for; found when asked for.

    Weights that move with each update move back with the next.
    """
    for played in _states(requests):
        played.peak()
        for _ in range(2):
            yield played.beyond() + played.peak()


def _states(requests: Requests) -> Iterator["_Played"]:
    yield _Played(requests, Allocator())
    draw = random.Random(0)
    for _ in range(_STATES - 1):
        allocator = Allocator()
        sizes = [int(2 ** draw.uniform(*_SIZES_OF_OTHERS)) for _ in range(draw.randint(1, _MOST_OTHERS))]
        others = [allocator.allocate(size) for size in sizes]
        played = _Played(requests, allocator)
        for address in others:
            if draw.random() < 0.5:
                allocator.free(address)
        yield played


class _Played:
    """Steps played on one allocator."""

    def __init__(self, requests: Requests, allocator: Allocator) -> None:
        self._requests, self._allocator = requests, allocator
        self._at = {number: allocator.allocate(size) for number, size in enumerate(requests.there)}
        for size in requests.beside:
            allocator.allocate(size)

    def beyond(self) -> int:
        """What the chunks of what is there between steps have more than was asked for."""
        there = ((self._at[number], size) for number, size in enumerate(self._requests.there))
        return sum(self._allocator.size(address) - size for address, size in there if address is not None)

    def peak(self) -> int:
        """Play a step; return its peak above what was in use before, without the copies that updates make."""
        allocator, at = self._allocator, self._at
        before = peak = allocator.in_use
        for number, size in self._requests.log:
            if size > 0:
                at[number] = allocator.allocate(size)
                peak = max(peak, allocator.in_use)
            else:
                old = at.pop(number)
                if size:
                    at[number] = allocator.allocate(-size)
                allocator.free(old)
        return peak - before
