"""How XLA lays out buffers in one heap."""

import numpy as np
import pytest
from tfgc._simulate.requests import Requests
from tfgc._simulate.xla_heap import heap_bytes

ALIGNED = 256


def lived(*spans):
    """The `Requests` for buffers given as (size, start, end), in units of which one is aligned."""
    requests, numbers = Requests(), {}
    for now in range(max(end for _, _, end in spans) + 1):
        for span in spans:
            if span[2] == now:
                requests.free(numbers[id(span)])
        for span in spans:
            if span[1] == now:
                numbers[id(span)] = requests.allocate(span[0] * ALIGNED)
    return requests


def most_alive(spans):
    return max(sum(size for size, start, end in spans if start <= now < end) for _, now, _ in spans)


@pytest.mark.parametrize(
    ("spans", "heap"),
    [
        ([(3, 0, 2), (3, 2, 4)], 3),  # one after the other, in one place
        ([(2, 0, 3), (1, 1, 5), (2, 3, 6)], 3),
        ([(4, 0, 3), (3, 2, 4), (3, 3, 7), (2, 3, 7)], 9),  # 8 are alive, and a gap of 1 is left
        ([(4, 0, 2), (2, 0, 5), (3, 0, 5), (2, 3, 5)], 9),  # the smallest gap, not the first
    ],
)
def test_buffers_get_the_smallest_gap_that_is_free_while_they_live(spans, heap):
    assert heap_bytes(lived(*spans)) == heap * ALIGNED
    assert heap >= most_alive(spans)


def test_sizes_are_aligned_and_what_takes_no_memory_has_no_place():
    requests = Requests()
    assert requests.allocate(0) is None
    requests.free(None)
    first = requests.allocate(1)
    requests.allocate(ALIGNED + 1)
    requests.free(first)
    assert heap_bytes(requests) == 3 * ALIGNED
    assert heap_bytes(Requests()) == 0


def test_a_heap_holds_at_least_what_is_alive_and_at_most_all_buffers():
    random = np.random.default_rng(0)
    for _ in range(20):
        spans = [(int(size), int(s), int(s + d)) for size, s, d in random.integers(1, 20, (30, 3))]
        heap = heap_bytes(lived(*spans)) // ALIGNED
        assert most_alive(spans) <= heap <= sum(size for size, _, _ in spans)
