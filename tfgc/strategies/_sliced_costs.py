"""What a segment needs that runs in slices of the batch, from what it needs as a whole.

An estimate from above of what the simulator counts event by event: of the most bytes inside the segment the share of a
slice counts, and all that is outside counts as if it lasted from its start to its end.
"""

from tfgc._core.buffers import Buffers
from tfgc._simulate import sliced_events
from tfgc.strategies._segment_costs import SegmentCost


def sliced(b: Buffers, start: int, live: int, segment: SegmentCost, slices: int, work: float) -> SegmentCost:
    """The cost in slices of a segment from `start` on, from that as a whole.

    `live` are bytes alive before it that are not held, `work` is that of its replay, which takes over no results.
    """
    part = range(start, segment.end)
    gradients = sliced_events.weight_gradients(b.graph, part, slices)
    results = sum(b.result_bytes[i] for i in part)
    captured = segment.captured_bytes - results
    joined = sum(b.size[x] for x in sliced_events.outputs(b, part))
    samples = b.graph.batch_size
    forward = live + joined + max(0, sliced_events.share(segment.forward_peak - live, samples, slices))
    waiting = b.pending_gradient_bytes[segment.end]
    handed = sum(size for _, size in sliced_events.input_gradients(b, part))
    inside = segment.replay_peak - results - captured - waiting
    replay = max(g.of_a_slice for g in gradients) + sum(g.perhaps for g in gradients)
    replay += max(0, sliced_events.share(inside, samples, slices))
    sums = sum(g.joined for g in gradients)
    products = sum(g.products for g in gradients)
    replay_peak = captured + waiting + handed + sums + max(replay, products)
    return SegmentCost(segment.end, forward, replay_peak, captured, segment.inputs, work)
