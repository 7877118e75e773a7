"""The calls of layers that a training step makes, one inside the other. Plain data."""

import dataclasses
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


def around_all(calls: list[Call]) -> Call:
    """The innermost call that is, or is around, each of some calls."""
    found = calls[0]
    for call in calls[1:]:
        holders = {call, *call.ancestors()}
        while found not in holders:
            assert found.parent is not None  # the step itself is around every call
            found = found.parent
    return found
