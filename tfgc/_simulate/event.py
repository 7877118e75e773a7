"""What a training step consists of: events, each of which is part of a run of some segments."""

import dataclasses

from tfgc._core.cotangents import NO_CHANGES, CotangentChanges
from tfgc._core.segments import Phase


@dataclasses.dataclass(slots=True)
class Event:
    """One run of a node in one direction."""

    position: int  # of the node
    phase: Phase
    reads: list[int]  # buffers, numbered as in `StepEvents.sizes`
    makes: list[int]  # the same; of a node that saves its internal buffer is the last
    extra_bytes: int  # besides these buffers: the node's workspace, cotangents and gradients of weights
    byte_trace: tuple[int, ...] = ()  # signed bytes of the buffers allocated (+) and freed (-) meanwhile
    work: float = 0  # in `StepEvents.unit`
    overwritten: int | None = None  # a buffer that is overwritten in place
    cotangents: CotangentChanges = NO_CHANGES
    gradient_bytes: int = 0  # of the gradients of weights that it makes
    # Buffers besides: small results that it stores for a replay, or what slices are joined in.
    results: tuple[int, ...] = ()


@dataclasses.dataclass(slots=True)
class Run:
    """A forward pass of some segments, or their replay."""

    held: dict[int, int]  # the copy of each buffer to read, by its number in `Buffers`
    internal: dict[int, int]  # the copy of each node's internal buffer, by position
    phase: Phase  # `forward` or `replay`
    pending: int  # bytes of gradients that wait meanwhile
    takes_over: bool  # whether it takes over the small results of the first run
    # By position the buffers of the products with weights that are stored of a node: of those that its backward pass
    # reads, and of others.
    products: dict[int, tuple[int, int]]
