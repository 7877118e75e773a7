"""Which tensors share a buffer, who reads and saves each, and how many bytes gradients take on their way.

Nothing here depends on a plan. Buffers are numbered in the order in which they are made, those of the graph's inputs
first; the inputs belong to the caller and count as zero bytes. A node that merely renames its input makes no buffer.
"""

import functools
import itertools
from collections.abc import Iterable, Sequence
from typing import Self

from tfgc._core.cotangents import CotangentFlow
from tfgc._core.graph import Graph
from tfgc._core.tensors import Ref, peak_of


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
            for i, view in enumerate(cost.aliases or (None,) * len(node.outputs)):
                ref = Ref(node.name, i)
                self.number[ref] = len(self.size) if view is None else self.number[view]
                if view is None:
                    self.size.append(graph.bytes(ref))
                    self.producer.append(position)
            self.outputs.append(tuple(range(first, len(self.size))))
            renamed = [ref for ref in cost.aliases if ref is not None]
            self.inputs.append(self._numbers(renamed if len(renamed) == len(node.outputs) else node.inputs))
            self.saved.append(self._numbers(cost.saved_tensors))
        self.graph_outputs = self._numbers(graph.outputs)
        # For each node the most bytes that the byte traces of its `Cost` reach, or an update behind them.
        self.forward_peak = [peak_of(cost.forward_trace) for cost in graph.costs]
        self.saving_peak = [peak_of(cost.forward_saving_trace) for cost in graph.costs]
        share = graph.whole_step * graph.table_update
        updates = [round(share * cost.table_bytes) for cost in graph.costs]
        self.backward_peak = [max(peak_of(cost.backward_trace), made) for cost, made in zip(graph.costs, updates)]
        # For each node bytes that it saves besides, and of products that a selective replay takes over.
        self.internal_bytes = [sum(cost.saved_internal_bytes) for cost in graph.costs]
        self.selective_bytes = [cost.selective_bytes if cost.saved_internal_bytes else 0 for cost in graph.costs]
        flow = CotangentFlow(graph, self.number, self.size, self.outputs)
        self.pending_gradient_bytes = flow.pending
        self.cotangent_changes = flow.changes
        self.cotangent_bytes = flow.bytes
        # For each node bytes of the cotangents alive when its backward pass starts, and of the gradients of its weights
        # if the graph counts the whole step; None if it has no backward pass.
        self.gradient_bytes_at: list[int | None] = []
        for i, (alive, cost) in enumerate(zip(flow.alive_at, graph.costs)):
            self.gradient_bytes_at.append(alive if alive is None else alive + graph.whole_step * cost.gradient_bytes)
            if alive is None:
                self.saved[i], self.internal_bytes[i], self.selective_bytes[i] = (), 0, 0
        self.selective_peak = [  # the most bytes that a selective replay allocates for each node
            max(peak_of(cost.selective_trace), peak - products) if products else peak
            for cost, peak, products in zip(graph.costs, self.saving_peak, self.selective_bytes)
        ]
        # For each node whether it overwrites what the node just before made for it alone. No segment may start there.
        self.in_place = [self._is_in_place(i) for i in range(len(graph))]
        self.may_start = [not in_place and i not in graph.joined for i, in_place in enumerate(self.in_place)]

    def _numbers(self, refs: Iterable[Ref]) -> tuple[int, ...]:
        return tuple(dict.fromkeys(self.number[ref] for ref in refs))

    def _is_in_place(self, position: int) -> bool:
        overwritten = self.graph.costs[position].overwrites
        if overwritten is None or position == 0:
            return False
        number = self.number[overwritten]
        is_of_last = number in self.outputs[position - 1] and number not in self.graph_outputs
        return is_of_last and self.readers[number] == [position] and not self.savers[number]

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
            if self.internal_bytes[position] or wanted.intersection(self.outputs[position]):
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
            if self.internal_bytes[i]:
                ends[i] = i + 1
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
    def selective_before(self) -> list[int]:
        """For each position the sum of `selective_bytes` of the nodes before it."""
        return [0, *itertools.accumulate(self.selective_bytes)]

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
        """Most bytes at once while the loss and its gradient are computed, on top of the graph's outputs."""
        return self.bytes_of_loss(self.graph.loss, self.overwritten_outputs)

    def bytes_of_loss(self, byte_trace: Sequence[int], written_over: Sequence[int]) -> int:
        """The same if the loss has this byte trace, and takes over the buffers of these outputs."""
        most = max(self.pending_gradient_bytes[-1], peak_of(byte_trace))
        return max(0, most - sum(self.size[number] for number in written_over))

    @functools.cached_property
    def overwritten_outputs(self) -> list[int]:
        """Outputs that the loss, or its gradient, is written over, since no backward pass reads them: under XLA all."""
        free = self.graph.outputs if self.graph.xla else self.graph.written_over
        return [number for number in self._numbers(free) if not self.savers[number]]
