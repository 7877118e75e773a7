"""What a training step consists of: events, each of which is part of a run of some segments."""

import dataclasses

from tfgc._core.cotangents import NO_CHANGES, CotangentChanges
from tfgc._core.segments import Phase


@dataclasses.dataclass(slots=True)
class Event:
    """One run of a node in one direction.

    Attributes:
        position: The node.
        phase: `forward`, `replay`, `loss`, `backward` or `return` (of a compiled segment).
        reads, makes: Buffers, numbered as in `StepEvents.sizes`. A node that saves makes its internal buffer last.
        extra_bytes: Bytes besides these buffers: the node's workspace, cotangents and gradients of weights.
        byte_trace: Signed bytes of the buffers allocated (+) and freed (-) meanwhile.
        work: In `StepEvents.unit`.
        overwritten: A buffer that is overwritten in place, or None.
        cotangents: The `CotangentChanges`.
        gradient_bytes: Bytes of the gradients of weights that it makes.
        results: Buffers besides: small results that it stores for a replay, or what slices are joined in.
    """

    position: int
    phase: Phase
    reads: list[int]
    makes: list[int]
    extra_bytes: int
    byte_trace: tuple[int, ...] = ()
    work: float = 0
    overwritten: int | None = None
    cotangents: CotangentChanges = NO_CHANGES
    gradient_bytes: int = 0
    results: tuple[int, ...] = ()


@dataclasses.dataclass(slots=True)
class Run:
    """A forward pass of some segments, or their replay.

    Attributes:
        held: The copy of each buffer to read, by its number in `Buffers`.
        internal: The copy of each node's internal buffer, by position.
        phase: `forward` or `replay`.
        pending: Bytes of gradients that wait meanwhile.
        takes_over: Whether it takes over the small results of the first run.
        products: By position the buffers of the products with weights that are stored of a node: of those that its
            backward pass reads, and of others.
    """

    held: dict[int, int]
    internal: dict[int, int]
    phase: Phase
    pending: int
    takes_over: bool
    products: dict[int, tuple[int, int]]
