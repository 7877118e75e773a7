"""The order in which a graph's nodes run: the one that leaves the least bytes alive comes first."""

import heapq
import math
from collections.abc import Iterable, Iterator, Sequence

from tfgc._core.graph import Node
from tfgc._core.tensors import Ref, Spec, itemsize

_NEVER = -1  # where an output of the graph is last read


def order(nodes: Sequence[Node], outputs: Iterable[Ref], after: Iterable[tuple[int, int]] = ()) -> tuple[Node, ...]:
    """Sort nodes so that few bytes are alive at once.

    Among the nodes whose inputs are ready, the one that leaves the smallest cut comes first; ties keep the given
    order, which respects the edges, so the result is deterministic. Unknown dimensions count as 1 here: they affect
    the order, not any figure. `outputs` stay alive to the end. `after` are pairs (i, j) of positions: node j must not
    run before node i.
    """
    position = {node.name: i for i, node in enumerate(nodes)}
    waits = [{position[ref.node] for ref in node.inputs if ref.node in position} for node in nodes]
    for first, second in after:
        waits[second].add(first)
    followers: list[list[int]] = [[] for _ in nodes]
    for i, awaited in enumerate(waits):
        for j in awaited:
            followers[j].append(i)
    liveness = _Liveness(nodes, outputs)
    # A node whose growth falls while it waits is pushed again; the older entry is skipped.
    ready = [(liveness.growth(i), i) for i, awaited in enumerate(waits) if not awaited]
    heapq.heapify(ready)
    result: dict[int, Node] = {}
    while ready:
        _, i = heapq.heappop(ready)
        if i in result:
            continue
        result[i] = nodes[i]
        changed = {j for j in liveness.run(i) if not waits[j]}
        for j in followers[i]:
            waits[j].discard(i)
            if not waits[j]:
                changed.add(j)
        for j in changed:
            heapq.heappush(ready, (liveness.growth(j), j))
    return tuple(result.values())


class _Liveness:
    """Which nodes still have to read each tensor, and what running a node adds to the bytes alive."""

    def __init__(self, nodes: Sequence[Node], outputs: Iterable[Ref]) -> None:
        self._made = [{Ref(node.name, k): _bytes(spec) for k, spec in enumerate(node.outputs)} for node in nodes]
        self._size = {ref: size for made in self._made for ref, size in made.items()}
        self._reads = [self._size.keys() & set(node.inputs) for node in nodes]
        self._readers: dict[Ref, set[int]] = {ref: set() for ref in self._size}
        for i, refs in enumerate(self._reads):
            for ref in refs:
                self._readers[ref].add(i)
        for ref in self._size.keys() & set(outputs):
            self._readers[ref].add(_NEVER)

    def growth(self, i: int) -> int:
        """Bytes that node `i` makes less those that it is the last to read."""
        freed = sum(self._size[ref] for ref in self._reads[i] if self._readers[ref] == {i})
        return sum(self._made[i].values()) - freed

    def run(self, i: int) -> Iterator[int]:
        """Run a node; yield the nodes that are now the last to read a tensor."""
        for ref in self._reads[i]:
            self._readers[ref].discard(i)
            if len(self._readers[ref]) == 1:
                yield from self._readers[ref] - {_NEVER}


def _bytes(spec: Spec) -> int:
    return math.prod(d or 1 for d in spec.shape) * itemsize(spec.dtype)
