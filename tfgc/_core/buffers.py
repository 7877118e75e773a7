"""Which tensors share a buffer, who reads and keeps each, and what gradients weigh on their way.

Nothing here depends on a plan. Buffers are numbered in the order in which they
are made, those of the graph's inputs first; the inputs belong to the caller and
count as no bytes. A node that merely renames its input makes none.
"""

import functools
import itertools

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
        for i, gradients in enumerate(self.gradients):
            if gradients is None:
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

    @functools.cached_property
    def gradients(self):
        """For each node, bytes of the cotangents alive when its backward pass starts; None if it has none.

        Each reader of a tensor gives a cotangent of its own. They are summed
        when the turn of the tensor's maker comes, as TensorFlow's tape does.
        """
        return self._walked[0]

    @functools.cached_property
    def waiting(self):
        """Bytes of the cotangents alive before the backward pass of what comes before each position."""
        return self._walked[1]

    @property
    def cotangents(self):
        """For each node the cotangents that its backward pass sums up, makes and ends.

        Triples: sums as (number, numbers of the parts), new ones as (number, bytes), and
        numbers; the entry after the nodes is the loss.
        """
        return self._walked[2]

    @functools.cached_property
    def cotangent_bytes(self):
        """Bytes of each cotangent."""
        sizes = {}
        for sums, new, _ in reversed(self.cotangents):
            sizes.update((number, sizes[parts[0]]) for number, parts in sums)
            sizes.update(new)
        return sizes

    @property
    def loss(self):
        """Most bytes at once while the loss and its gradient are computed, on top of the graph's outputs."""
        return max(self.waiting[-1], _peak_of(self.graph.loss))

    @functools.cached_property
    def _walked(self):
        graph, n = self.graph, len(self.graph)
        parts = {}  # the cotangents of each buffer
        owners, sizes, ids = {}, {}, itertools.count()

        def give(number, which):
            parts.setdefault(number, []).append(which)
            owners[which] = owners.get(which, 0) + 1

        def drop(which):
            owners[which] -= 1
            if not owners[which]:
                del owners[which], sizes[which]
                ended.append(which)

        def fresh(number):
            which = next(ids)
            sizes[which] = self.size[number]
            made_here.append((which, sizes[which]))
            return which

        made_here, ended = [], []
        flow = [((), (), ()) for _ in range(n + 1)]
        for number in dict.fromkeys(self.number[ref] for ref in graph.outputs if graph.floating(ref)):
            give(number, fresh(number))
        flow[n] = ((), tuple(made_here), ())
        at, waiting = [None] * n, [0] * (n + 1)
        waiting[n] = sum(sizes.values())
        for i in range(n - 1, -1, -1):
            cost, node = graph.costs[i], graph.nodes[i]
            made_here, ended, sums = [], [], ()
            made = [m for m in self.makes[i] if m in parts]
            views = {self.number[Ref(node.name, k)] for k, v in enumerate(cost.views) if v is not None}
            if cost.differentiable and (made or views.intersection(parts)):
                for number in made:
                    if len(parts[number]) > 1:
                        summed = parts.pop(number)
                        for which in summed:
                            drop(which)
                        give(number, fresh(number))
                        sums += ((made_here.pop()[0], tuple(summed)),)
                at[i] = sum(sizes.values())
                ended = [which for which in ended if not any(which in summed for _, summed in sums)]
                wants = dict.fromkeys(self.number[ref] for ref in cost.wants)
                passed = {self.number[ref] for ref in cost.passes}
                for number in wants:
                    if number in views:
                        continue
                    if number in passed and made:
                        give(number, parts[made[0]][0])
                    else:
                        give(number, fresh(number))
            for number in made:
                for which in parts.pop(number):
                    drop(which)
            waiting[i] = sum(sizes.values())
            flow[i] = (sums, tuple(made_here), tuple(ended))
        if graph.whole_step:
            at = [None if a is None else a + cost.gradient_bytes for a, cost in zip(at, graph.costs)]
        return at, waiting, flow


def _peak_of(course):
    """The most bytes that a course of signed counts comes to, at least 0."""
    return max(0, max(itertools.accumulate(course), default=0))
