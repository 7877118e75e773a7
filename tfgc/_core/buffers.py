"""Which tensors share a buffer, who reads and saves each, and how many bytes gradients take on their way.

Nothing here depends on a plan. Buffers are numbered in the order in which they are made, those of the graph's inputs
first; the inputs belong to the caller and count as zero bytes.
"""

import functools
from collections.abc import Iterable, Sequence
from typing import Self

from tfgc._core.graph import Graph
from tfgc._core.tensors import Ref


class Buffers:
    """The buffers of a graph, and what each node does with them."""

    @classmethod
    def of(cls, graph: Graph) -> Self:
        """The buffers of a graph, numbered once for each graph."""
        return graph.once(cls)

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.size = [0] * len(graph.inputs)  # bytes of each buffer
        self.producer = [-1] * len(graph.inputs)  # position of the node that makes each buffer
        self.number = {Ref(name): i for i, name in enumerate(graph.inputs)}  # the buffer of each tensor
        # For each node the buffers that it reads, that its backward pass reads, and that it makes.
        self.inputs: list[tuple[int, ...]] = []
        self.saved: list[tuple[int, ...]] = []
        self.outputs: list[tuple[int, ...]] = []
        for position, (node, cost) in enumerate(zip(graph.nodes, graph.costs)):
            first = len(self.size)
            for ref in node.made:
                self.number[ref] = len(self.size)
                self.size.append(graph.bytes(ref))
                self.producer.append(position)
            self.outputs.append(tuple(range(first, len(self.size))))
            self.inputs.append(self._numbers(node.inputs))
            self.saved.append(self._numbers(cost.saved_tensors))
        self.graph_outputs = self._numbers(graph.outputs)
        # For each node the most bytes that its forward and its backward pass allocate.
        self.forward_peak = [cost.forward_bytes for cost in graph.costs]
        self.backward_peak = [cost.backward_bytes for cost in graph.costs]
        # For each node bytes of the cotangents alive when its backward pass starts; None if it has none.
        self.gradient_bytes_at: list[int | None] = [None] * len(graph)
        # For each position bytes of those alive when the nodes from there on have run backward.
        self.pending_gradient_bytes = [0] * (len(graph) + 1)
        self._follow_cotangents()
        for i, alive in enumerate(self.gradient_bytes_at):
            if alive is None:
                self.saved[i] = ()

    def _follow_cotangents(self) -> None:
        """Each reader of a tensor makes a cotangent. They are summed when the node that made it runs backward."""
        graph, number, size = self.graph, self.number, self.size
        # Cotangents of each buffer
        counts = {number[ref]: 1 for ref in graph.outputs if graph.floating(ref)}
        self.pending_gradient_bytes[-1] = alive = sum(size[buffer] for buffer in counts)
        for i in reversed(range(len(graph))):
            made = [buffer for buffer in self.outputs[i] if buffer in counts]
            if made:
                alive -= sum((counts[buffer] - 1) * size[buffer] for buffer in made)  # one sum of them
                self.gradient_bytes_at[i] = alive
                for buffer in dict.fromkeys(number[ref] for ref in graph.costs[i].differentiable_inputs):
                    counts[buffer] = counts.get(buffer, 0) + 1
                    alive += size[buffer]
                alive -= sum(size[buffer] for buffer in made)
                for buffer in made:
                    del counts[buffer]
            self.pending_gradient_bytes[i] = alive

    def _numbers(self, refs: Iterable[Ref]) -> tuple[int, ...]:
        return tuple(dict.fromkeys(self.number[ref] for ref in refs))

    @functools.cached_property
    def readers(self) -> list[list[int]]:
        """Positions that read each buffer, ascending."""
        return self._positions(self.inputs)

    @functools.cached_property
    def savers(self) -> list[list[int]]:
        """Positions whose backward pass reads each buffer, ascending."""
        return self._positions(self.saved)

    def _positions(self, buffers_of_nodes: Sequence[Sequence[int]]) -> list[list[int]]:
        positions: list[list[int]] = [[] for _ in self.size]
        for position, numbers in enumerate(buffers_of_nodes):
            for number in numbers:
                positions[number].append(position)
        return positions

    def replayed(self, positions: Sequence[int]) -> set[int]:
        """The nodes among `positions` that their replay runs: those whose results some backward pass reads."""
        wanted: set[int] = set()
        runs: set[int] = set()
        for position in reversed(positions):
            wanted.update(self.saved[position])
            if wanted.intersection(self.outputs[position]):
                runs.add(position)
                wanted.update(self.inputs[position])
        return runs

    @functools.cached_property
    def first_replay_end(self) -> list[int]:
        """For each node the least end of a segment, containing the node, whose replay runs it.

        The replay of a segment up to `end` runs node i if `first_replay_end[i] <= end`: some backward pass in it reads
        what i makes, or what a node that runs makes of it.
        """
        n = len(self.graph)
        ends = [n + 1] * n
        for i in range(n - 1, -1, -1):
            for number in self.outputs[i]:
                later = [ends[j] for j in self.readers[number]] + [j + 1 for j in self.savers[number]]
                ends[i] = min([ends[i], *later])
        return ends

    @functools.cached_property
    def replay_uses(self) -> list[list[tuple[int, int]]]:
        """For each buffer pairs (position, end): a replay up to `end` or beyond reads it at `position`."""
        uses: list[dict[int, int]] = [{} for _ in self.size]
        for i, numbers in enumerate(self.inputs):
            for number in numbers:
                uses[number][i] = self.first_replay_end[i]
        for i, numbers in enumerate(self.saved):
            for number in numbers:
                if self.producer[number] != i:
                    uses[number][i] = i + 1
        return [sorted(found.items()) for found in uses]

    @functools.cached_property
    def last_read(self) -> list[int]:
        """Position of the last reader of each buffer in a plain forward pass; the number of nodes for outputs."""
        last = [max(readers, default=producer) for readers, producer in zip(self.readers, self.producer)]
        for number in self.graph_outputs:
            last[number] = len(self.graph)
        return last

    @functools.cached_property
    def live_across(self) -> list[list[int]]:
        """For each position the buffers that are made before it and read, or saved, at or after it."""
        live: list[list[int]] = [[] for _ in range(len(self.graph) + 1)]
        for number, uses in enumerate(self.replay_uses):
            end = max([self.last_read[number], *(position for position, _ in uses)])
            for position in range(self.producer[number] + 1, min(end, len(self.graph)) + 1):
                live[position].append(number)
        return live

    @property
    def loss_bytes(self) -> int:
        """Bytes of the gradients of the graph's outputs, on top of these."""
        return self.pending_gradient_bytes[-1]
