"""A training step as plain data: the calls of layers, one inside the other, its operations, and their buffers.

Operations are numbered in the order in which they start, buffers as they are met.
"""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any, Optional


@dataclasses.dataclass(eq=False)
class Call:
    """One call of a layer or op.

    Attributes:
        layer: What is called; None for the step itself.
        parent: The call inside of which it happens.
        first, last: Its operations are those of the graph from `first` up to, not including, `last`.
        scope: The name scope of its operations; None for an op, which has none of its own.
        training: The `training` that it runs with.
        inputs: The shapes of the tensors that it is given.
        children: The calls directly inside of it, in order.
    """

    layer: Any
    parent: Optional["Call"]
    first: int
    last: int = 0
    scope: str | None = None
    training: bool | None = None
    inputs: tuple[tuple[int | None, ...], ...] = ()
    children: list["Call"] = dataclasses.field(default_factory=list)

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
    """One operation of a step.

    Attributes:
        late: Whether it depends on a gradient.
        reads, makes: Buffers.
        waits: The late operations that it reads or waits for.
        in_place: Whether it writes over an input that nothing else reads.
        work: In flops.
        workspace: Bytes that it takes until the end of the step; under XLA only if it is not recomputed, and in truth
            to the end of its own backward pass where they are deviations from a mean.
        temporary: Bytes that it takes while it runs, besides those that it reads and makes.
        owner: The call that it belongs to.
    """

    late: bool
    reads: tuple[int, ...]
    makes: tuple[int, ...]
    waits: tuple[int, ...]
    in_place: bool
    work: int
    workspace: int
    temporary: int
    owner: Call


@dataclasses.dataclass(frozen=True)
class Step:
    """A training step.

    Attributes:
        root: The step as the outermost call.
        operations: What it runs, in order.
        sizes: Bytes of each buffer; 0 for the batch, which is there before the step.
        makers: The operation that makes each buffer.
        batch: Buffers of the batch, which stay.
        weight_gradients: Buffers of the gradients of weights, which stay until the step ends.
        spans: For each call its operations of the forward pass.
        obstacles: Why a call must not be run twice, for those that must not.
        uncopied: Calls with operations that no graph copies, so that their replays take over nothing.
        resident: Bytes of what is there all the time beside variables: constants that TensorFlow folds, or under XLA
            transposed weights.
        products: Buffers of the results of products with weights, which selective replays take over.
        xla: Whether XLA compiles the step.
    """

    root: Call
    operations: list[Operation]
    sizes: list[int]
    makers: list[int]
    batch: frozenset[int]
    weight_gradients: frozenset[int]
    spans: dict[Call, list[int]]
    obstacles: dict[Call, str]
    resident: tuple[int, ...]
    products: frozenset[int] = frozenset()
    uncopied: frozenset[Call] = frozenset()
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
