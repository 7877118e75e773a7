"""What was planned and predicted of a case before it ran."""

import dataclasses

from tfgc._core.shown import Brief


@dataclasses.dataclass(frozen=True)
class Predicted:
    """What was predicted of a case before it ran. Bytes: of the whole step above weights and optimizer slots."""

    peak_bytes: int  # the peak of live buffers
    overhead: float  # work on top of the plain step's, as a fraction of it, counted in `unit`
    unit: str  # `s` or `flop`
    floor_bytes: int  # the least peak of any plan
    floor_node: str  # which sets it
    plain_bytes: int  # the peak if nothing is recomputed
    buffer_bytes: int | None = None  # of earlier files, where `peak_bytes` counted an allocator's chunks
    fixed_bytes: int | None = None  # weights and optimizer slots, which are there all the time and in none of the above
    host_bytes: int = 0  # what the host stores at most, in none of the above either


@dataclasses.dataclass(frozen=True, repr=False)
class SegmentSummary(Brief):
    """A segment of a plan, as it is drawn along the network."""

    first: str
    last: str  # its last node
    nodes: int  # their number
    mode: str  # `keep` or `recompute`
    stored_bytes: int | None = None  # bytes of activations that it stores until its backward pass; None if unknown
    inside_bytes: int | None = None  # bytes of activations that it would store if it were kept whole; None if unknown
    inner: tuple["SegmentSummary", ...] = ()  # the segments of its replay, where that is split again
    host_bytes: int = 0  # bytes of its inputs that wait on the host
