"""Which tensors share a buffer, who reads and keeps each, and what gradients weigh on their way.

Nothing here depends on a plan. Buffers are numbered in the order in which they
are made, those of the graph's inputs first; the inputs belong to the caller and
count as no bytes. A node that merely renames its input makes none.
"""

import functools
import itertools

from tfgc._core.cotangents import CotangentFlow
from tfgc._core.graph import Ref


class Buffers:
    """The buffers of a graph, and what each node does with them.

    Attributes:
        size: Bytes of each buffer.
        maker: Position of the node that makes each, -1 for the graph's inputs.
        reads, keeps, makes: For each node the buffers that it reads, that its
            backward pass reads, and that it makes.
        outputs: Those of the graph's outputs.
        takes: For each node whether it writes over what the node just before made for it alone.
        forward, keeping, backward: For each node the most bytes that the course of its cost comes to.
        internal: Bytes that each node keeps besides `keeps`.
        gradients: For each node, bytes of the cotangents alive when its backward pass starts; None if it has none.
        waiting: Bytes of the cotangents alive before the backward pass of what comes before each position.
        cotangents: For each node its `CotangentChanges`; the entry after the nodes is the loss.
        cotangent_bytes: Bytes of each cotangent.
    """

    @classmethod
    def of(cls, graph):
        """The buffers of a graph, numbered once for each graph."""
        return graph.once(cls)

    def __init__(self, graph):
        self.graph = graph
        self.size = [0] * len(graph.inputs)
        self.maker = [-1] * len(graph.inputs)
        self.number = {Ref(name): i for i, name in enumerate(graph.inputs)}
        self.reads, self.keeps, self.makes = [], [], []
        for position, (node, cost) in enumerate(zip(graph.nodes, graph.costs)):
            first = len(self.size)
            for i, view in enumerate(cost.views or (None,) * len(node.outputs)):
                ref = Ref(node.name, i)
                self.number[ref] = len(self.size) if view is None else self.number[view]
                if view is None:
                    self.size.append(graph.bytes(ref))
                    self.maker.append(position)
            self.makes.append(tuple(range(first, len(self.size))))
            renamed = [ref for ref in cost.views if ref is not None]
            self.reads.append(self._numbers(renamed if len(renamed) == len(node.outputs) else node.inputs))
            self.keeps.append(self._numbers(cost.keeps))
        self.outputs = self._numbers(graph.outputs)
        self.forward = [_peak_of(cost.forward) for cost in graph.costs]
        self.keeping = [_peak_of(cost.keeping) for cost in graph.costs]
        self.backward = [_peak_of(cost.backward) for cost in graph.costs]
        self.internal = [sum(cost.internal) for cost in graph.costs]
        flow = CotangentFlow(graph, self.number, self.size, self.makes)
        self.waiting, self.cotangents, self.cotangent_bytes = flow.pending, flow.changes, flow.bytes
        self.gradients = []
        for i, (alive, cost) in enumerate(zip(flow.alive_at, graph.costs)):
            self.gradients.append(alive if alive is None else alive + graph.whole_step * cost.gradient_bytes)
            if alive is None:
                self.keeps[i], self.internal[i] = (), 0
        self.takes = [self._takes(i) for i in range(len(graph))]

    def _numbers(self, refs):
        return tuple(dict.fromkeys(self.number[ref] for ref in refs))

    @functools.cached_property
    def readers(self):
        """Positions that read each buffer, ascending."""
        readers = [[] for _ in self.size]
        for position, numbers in enumerate(self.reads):
            for number in numbers:
                readers[number].append(position)
        return readers

    @functools.cached_property
    def keepers(self):
        """Positions whose backward pass reads each buffer, ascending."""
        keepers = [[] for _ in self.size]
        for position, numbers in enumerate(self.keeps):
            for number in numbers:
                keepers[number].append(position)
        return keepers

    def _takes(self, position):
        taken = self.graph.costs[position].takes
        number = None if taken is None else self.number[taken]
        if number is None or position == 0 or number not in self.makes[position - 1] or number in self.outputs:
            return False
        return self.readers[number] == [position] and not self.keepers[number]

    def needed(self, positions):
        """The nodes among `positions` that a replay of them runs: those whose result some backward pass reads."""
        wanted, runs = set(), set()
        for position in reversed(positions):
            wanted.update(self.keeps[position])
            if self.internal[position] or wanted.intersection(self.makes[position]):
                runs.add(position)
                wanted.update(self.reads[position])
        return runs

    @functools.cached_property
    def wakes(self):
        """For each node the end of the shortest stretch, from it on, whose replay runs it.

        A replay of the nodes up to `end` runs node i if `wakes[i] <= end`: some
        backward pass in it reads what i makes, or what a node that runs makes of it.
        """
        n = len(self.graph)
        wakes = [n + 1] * n
        for i in range(n - 1, -1, -1):
            if self.internal[i]:
                wakes[i] = i + 1
            for number in self.makes[i]:
                later = [wakes[j] for j in self.readers[number]] + [j + 1 for j in self.keepers[number]]
                wakes[i] = min([wakes[i], *later])
        return wakes

    @functools.cached_property
    def uses(self):
        """For each buffer pairs (position, end): a replay up to `end` or beyond reads it at `position`."""
        uses = [{} for _ in self.size]
        for i, numbers in enumerate(self.reads):
            for number in numbers:
                uses[number][i] = self.wakes[i]
        for i, numbers in enumerate(self.keeps):
            for number in numbers:
                if self.maker[number] != i:
                    uses[number][i] = i + 1
        return [sorted(found.items()) for found in uses]

    @functools.cached_property
    def last(self):
        """Position of the last reader of each buffer in a plain forward pass; the number of nodes for outputs."""
        last = [max(readers, default=maker) for readers, maker in zip(self.readers, self.maker)]
        for number in self.outputs:
            last[number] = len(self.graph)
        return last

    @functools.cached_property
    def crossing(self):
        """For each position the buffers that are made before and read, or kept, at or after it."""
        crossing = [[] for _ in range(len(self.graph) + 1)]
        for number, uses in enumerate(self.uses):
            end = max([self.last[number], *(position for position, _ in uses)])
            for position in range(self.maker[number] + 1, min(end, len(self.graph)) + 1):
                crossing[position].append(number)
        return crossing

    @property
    def loss(self):
        """Most bytes at once while the loss and its gradient are computed, on top of the graph's outputs."""
        return max(self.waiting[-1], _peak_of(self.graph.loss))


def _peak_of(course):
    """The most bytes that a course of signed counts comes to, at least 0."""
    return max(0, max(itertools.accumulate(course), default=0))
