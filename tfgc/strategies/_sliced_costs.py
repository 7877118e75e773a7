"""What a segment needs that runs in slices of the batch, from what it needs as a whole.

An estimate from above of what the simulator counts event by event: the most bytes inside the segment are divided by the
number of slices, and all that is outside counts as if it lasted from its start to its end.
"""

from typing import NamedTuple

from tfgc._core.buffers import Buffers
from tfgc._simulate import sliced_events
from tfgc.strategies._segment_costs import SegmentCost


class SlicedCost(NamedTuple):
    """Most bytes at once of a segment in slices, in its first pass and in its replay, and those that it stores.

    Those that are held are left out.
    """

    forward_peak: int
    replay_peak: int
    captured_bytes: int


def sliced(b: Buffers, start: int, live: int, segment: SegmentCost, slices: int) -> SlicedCost:
    """The cost of a segment from `start` on in slices; `live` are bytes alive before it that are not held."""
    part = range(start, segment.end)
    gradients = sliced_events.weight_gradients(b.graph, part, slices)
    results = sum(b.result_bytes[i] for i in part)
    captured = segment.captured_bytes - results
    joined = sum(b.size[x] for x in sliced_events.outputs(b, part))
    forward = live + joined + _share(segment.forward_peak - live, slices)
    waiting = b.pending_gradient_bytes[segment.end]
    handed = sum(size for _, size in sliced_events.input_gradients(b, part))
    inside = segment.replay_peak - results - captured - waiting
    replay = max(g.summed for g in gradients) + _share(inside, slices)
    sums = sum(g.summed + g.rows for g in gradients)
    products = sum(g.products for g in gradients)
    return SlicedCost(forward, captured + waiting + handed + sums + max(replay, products), captured)


def _share(size: int, slices: int) -> int:
    return max(0, -(-size // slices))
