"""How cotangents flow from the loss to the inputs: which are made, summed up and freed, and how many bytes are alive.

Each reader of a tensor makes a separate cotangent. They are summed when the node that made the tensor runs backward, as
TensorFlow's tape does. None of this depends on a plan.
"""

import itertools
from typing import NamedTuple

from tfgc._core.graph import Graph
from tfgc._core.tensors import Ref


class CotangentChanges(NamedTuple):
    """What happens to cotangents, named by numbers, while one node runs backward."""

    sums: tuple[tuple[int, tuple[int, ...]], ...] = ()  # a sum and its parts; it takes over the buffer of the first
    new: tuple[tuple[int, int], ...] = ()  # a cotangent and its bytes
    ended: tuple[int, ...] = ()  # those that nobody needs afterwards


NO_CHANGES = CotangentChanges()


class CotangentFlow:
    """The cotangents of one backward pass, last node first. The arguments are as in `Buffers`."""

    def __init__(self, graph: Graph, number: dict[Ref, int], size: list[int], outputs: list[tuple[int, ...]]) -> None:
        self._graph, self._number, self._size, self._outputs = graph, number, size, outputs
        self._of: dict[int, list[int]] = {}  # cotangents of each buffer
        self._owners: dict[int, int] = {}  # how many buffers a cotangent belongs to
        self._alive: dict[int, int] = {}  # bytes of the cotangents that are alive
        self._ids = itertools.count()
        n = len(graph)
        self.bytes: dict[int, int] = {}  # of each cotangent
        self.changes = [NO_CHANGES] * (n + 1)  # of each node; the entry after the nodes is the loss
        # For each node bytes alive when its backward pass starts; None if it has none.
        self.alive_at: list[int | None] = [None] * n
        self.pending = [0] * (n + 1)  # for each position bytes alive when the nodes from there on have run backward
        returned = dict.fromkeys(number[ref] for ref in graph.outputs if graph.floating(ref))
        self.changes[n] = CotangentChanges(new=tuple(self._fresh(buffer) for buffer in returned))
        self.pending[n] = sum(self._alive.values())
        for i in reversed(range(n)):
            self.changes[i] = self._backward(i)
            self.pending[i] = sum(self._alive.values())

    def _backward(self, i: int) -> CotangentChanges:
        """Run a node backward."""
        cost, name = self._graph.costs[i], self._graph.nodes[i].name
        made = [buffer for buffer in self._outputs[i] if buffer in self._of]
        aliased = {self._number[Ref(name, k)] for k, ref in enumerate(cost.aliases) if ref is not None}
        sums, new = [], []
        if cost.differentiable and (made or aliased & self._of.keys()):
            sums = [self._sum(buffer) for buffer in made if len(self._of[buffer]) > 1]
            self.alive_at[i] = sum(self._alive.values())
            passed = {self._number[ref] for ref in cost.passthrough_inputs} if made else set()
            for buffer in dict.fromkeys(self._number[ref] for ref in cost.differentiable_inputs):
                if buffer in passed - aliased:
                    self._give(buffer, self._of[made[0]][0])
                elif buffer not in aliased:
                    new.append(self._fresh(buffer))
        ended = [cotangent for buffer in made for cotangent in self._of.pop(buffer) if self._drop(cotangent)]
        return CotangentChanges(tuple(sums), tuple(new), tuple(ended))

    def _sum(self, buffer: int) -> tuple[int, tuple[int, ...]]:
        parts = self._of.pop(buffer)
        for part in parts:
            self._drop(part)
        total, _ = self._fresh(buffer)
        self.bytes[total] = self.bytes[parts[0]]
        return total, tuple(parts)

    def _fresh(self, buffer: int) -> tuple[int, int]:
        cotangent, size = next(self._ids), self._size[buffer]
        self.bytes[cotangent] = self._alive[cotangent] = size
        self._give(buffer, cotangent)
        return cotangent, size

    def _give(self, buffer: int, cotangent: int) -> None:
        self._of.setdefault(buffer, []).append(cotangent)
        self._owners[cotangent] = self._owners.get(cotangent, 0) + 1

    def _drop(self, cotangent: int) -> bool:
        """Take a cotangent from one of its buffers; return whether that was the last one."""
        self._owners[cotangent] -= 1
        if self._owners[cotangent]:
            return False
        del self._owners[cotangent], self._alive[cotangent]
        return True
