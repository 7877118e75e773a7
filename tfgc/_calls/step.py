"""A training step as plain data: the calls of layers, one inside the other, its operations, and their buffers.

Operations are numbered in the order in which they start, buffers as they are met.
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any, Optional


@dataclasses.dataclass(eq=False)
class Call:
    """One call of a layer or op."""

    layer: Any  # None for the step itself
    parent: Optional["Call"]  # inside of which it happens
    first: int  # Its operations are those of the graph from here up to `last`, without that one.
    last: int = 0
    scope: str | None = None  # the name scope of its operations; None for an op, which has none of its own
    training: bool | None = None
    inputs: tuple[tuple[int | None, ...], ...] = ()  # the shapes of the tensors that it is given
    children: list["Call"] = dataclasses.field(default_factory=list)  # directly inside of it, in order

    def ancestors(self) -> Iterator["Call"]:
        """The calls around it, innermost first; the step itself is the last."""
        at = self.parent
        while at is not None:
            yield at
            at = at.parent

    def within(self) -> Iterator["Call"]:
        """It, and all calls inside of it, in order."""
        yield self
        for child in self.children:
            yield from child.within()

    @property
    def depth(self) -> int:
        """How many calls are around it."""
        return sum(1 for _ in self.ancestors())


@dataclasses.dataclass(frozen=True, slots=True)
class Operation:
    """One operation of a step."""

    late: bool  # whether it depends on a gradient
    reads: tuple[int, ...]  # buffers
    makes: tuple[int, ...]
    waits: tuple[int, ...]  # the late operations that it reads or waits for
    in_place: bool  # whether it writes over an input that nothing else reads
    work: int  # in flops
    # Bytes that are taken until the end of the step; under XLA only if it is not recomputed, and in truth to the end of
    # its own backward pass where they are deviations from a mean.
    workspace: int
    temporary: int  # bytes that it takes while it runs, besides those that it reads and makes
    owner: Call


@dataclasses.dataclass(frozen=True)
class Step:
    """A training step."""

    root: Call  # the step as the outermost call
    operations: list[Operation]  # in the order in which they run
    sizes: list[int]  # bytes of each buffer; 0 for the batch, which is there before the step
    makers: list[int]  # the operation that makes each buffer
    batch: frozenset[int]  # its buffers, which stay
    weight_gradients: frozenset[int]  # buffers that stay until the step ends
    spans: dict[Call, list[int]]  # for each call its operations of the forward pass
    obstacles: dict[Call, str]  # why calls must not be run twice, for those that must not
    # Bytes that count as there all the time beside variables: folded constants, or under XLA transposed weights.
    resident: tuple[int, ...]
    products: frozenset[int] = frozenset()  # results of dear products, and masks, which selective replays take over
    small: frozenset[int] = frozenset()  # small results, which all replays take over
    # For masks that all replays take over, the buffer of the bits, which the first run makes if there is a replay
    packed: Mapping[int, int] = dataclasses.field(default_factory=dict)
    uncopied: frozenset[Call] = frozenset()  # with operations that no graph copies: their replays take over nothing
    xla: bool = False

    @functools.cached_property
    def readers(self) -> list[list[int]]:
        """The operations that read each buffer."""
        found: list[list[int]] = [[] for _ in self.sizes]
        for i, op in enumerate(self.operations):
            for buffer in op.reads:
                found[buffer].append(i)
        return found

    @functools.cached_property
    def late(self) -> list[int]:
        """The operations of the backward pass."""
        return [i for i, op in enumerate(self.operations) if op.late]

    @functools.cached_property
    def late_of(self) -> dict[Call, list[int]]:
        """The operations of the backward pass that belong to each call or to calls inside of it."""
        found: dict[Call, list[int]] = {}
        for i in self.late:
            owner = self.operations[i].owner
            for call in (owner, *owner.ancestors()):
                found.setdefault(call, []).append(i)
        return found

    @functools.cached_property
    def kept(self) -> frozenset[int]:
        """What the forward pass makes and the backward pass reads."""
        made = (b for b, maker in enumerate(self.makers) if not self.operations[maker].late)
        return frozenset(b for b in made if any(self.operations[i].late for i in self.readers[b])) - self.batch

    @functools.cached_property
    def work(self) -> int:
        """Flops of the step."""
        return sum(op.work for op in self.operations)
