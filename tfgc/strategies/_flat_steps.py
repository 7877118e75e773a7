"""The states of plans without nesting, and the steps between them."""

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

# The values of `Steps` for one step
Row: TypeAlias = tuple[int, int, int, int, float, int, int, bool]


class State(NamedTuple):
    """A position, and the buffers that are held there."""

    position: int
    held: frozenset[int]


class Steps(NamedTuple):
    """The steps from one state, an array for each column.

    Attributes:
        target: The state that a step leads to.
        need: Most bytes at once meanwhile, on top of those held before.
        backward: The same in the replay and the backward pass alone.
        added: Bytes that are held afterwards in addition.
        work: Work of a replay.
        slices: Of the batch, in which a segment is recomputed; 0 where the step is a node that is kept.
        host: Bytes that a segment stores on the host, in place of `added`.
        selective: Whether the replay of a segment takes over products with weights.
    """

    target: NDArray[np.int64]
    need: NDArray[np.int64]
    backward: NDArray[np.int64]
    added: NDArray[np.int64]
    work: NDArray[Any]
    slices: NDArray[np.int64]
    host: NDArray[np.int64]
    selective: NDArray[np.bool_]
