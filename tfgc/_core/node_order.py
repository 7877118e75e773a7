"""The order in which a graph's nodes run: what leaves little alive comes first."""

import math

from tfgc._core.graph import Ref, itemsize


def order(nodes, outputs, after=()):
    """Sort nodes so that little is alive: the next is what leaves least bytes.

    Among the nodes whose inputs are there, the one that leaves the smallest cut
    comes first; ties keep the given order, so the result is deterministic.
    Unknown dimensions count as 1 here: they move an order, never a figure.

    Args:
        nodes: Nodes in some order that respects the edges.
        outputs: `Ref`s that stay alive to the end.
        after: Pairs (i, j) of positions: node j must not run before node i.
    """
    size = {}
    for node in nodes:
        for i, spec in enumerate(node.outputs):
            size[Ref(node.name, i)] = math.prod(d or 1 for d in spec.shape) * itemsize(spec.dtype)
    readers = dict.fromkeys(size, 0)
    made_by = {node.name: i for i, node in enumerate(nodes)}
    waits = [set() for _ in nodes]
    for i, node in enumerate(nodes):
        waits[i].update(made_by[ref.node] for ref in node.inputs if ref.node in made_by)
        for ref in set(node.inputs) & set(readers):
            readers[ref] += 1
    for ref in set(outputs) & set(readers):
        readers[ref] += 1
    for first, second in after:
        waits[second].add(first)
    followers = [[] for _ in nodes]
    for i, awaited in enumerate(waits):
        for j in awaited:
            followers[j].append(i)

    def growth(i):
        made = sum(size[Ref(nodes[i].name, k)] for k in range(len(nodes[i].outputs)))
        freed = sum(size[ref] for ref in set(nodes[i].inputs) & set(readers) if readers[ref] == 1)
        return (made - freed, i)

    ready = {i for i, awaited in enumerate(waits) if not awaited}
    result = []
    while ready:
        i = min(ready, key=growth)
        ready.remove(i)
        result.append(nodes[i])
        for ref in set(nodes[i].inputs) & set(readers):
            readers[ref] -= 1
        for j in followers[i]:
            waits[j].discard(i)
            if not waits[j]:
                ready.add(j)
    return tuple(result)
