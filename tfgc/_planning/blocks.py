"""The forward part of a step as a `Graph` for strategies: a node for each operation that makes a planned buffer.

What a node saves are the buffers that gradients read; its backward pass makes a gradient for each input. That is what
strategies need to compare cuts; the winner is simulated operation by operation.
"""

import bisect
import dataclasses
import functools
import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from tfgc._core.graph import Cost, Graph, Node
from tfgc._core.plan import Plan
from tfgc._core.segments import Segment
from tfgc._core.tensors import Ref, Spec
from tfgc._rewrite.recompute import Cut
from tfgc._step.step import Step, Tensor


@dataclasses.dataclass(frozen=True)
class Blocks:
    """The way of a step to the buffers that one gradient call reads; its blocks are operations that make planned ones.

    Attributes:
        step: The step.
        call: The gradient call; the first one is 1.
        numbers: The operations of the way, in order.
    """

    step: Step
    call: int
    numbers: tuple[int, ...]

    @functools.cached_property
    def place(self) -> dict[int, int]:
        """The place of each operation of the way."""
        return {i: k for k, i in enumerate(self.numbers)}

    @functools.cached_property
    def gradients(self) -> dict[int, int]:
        """For each operation of the gradient call the place of the block that it belongs to.

        That is the last of those whose buffers it reads, or else the first that its inputs belong to.
        """
        found: dict[int, int] = {}
        for i in self.step.order:
            op = self.step.ops[i]
            if op.call == self.call:
                read = [self.place[b[0]] for b in self.step.reads[i] if b[0] in self.place]
                before = [found[t[0]] for t in op.inputs if t[0] in found]
                found[i] = max(read) if read else min(before, default=len(self.numbers) - 1)
        return found

    @functools.cached_property
    def saved(self) -> dict[Tensor, int]:
        """The buffers that gradients read, each with the first block that one of these belongs to."""
        found: dict[Tensor, int] = {}
        for i, place in self.gradients.items():
            for b in self.step.reads[i]:
                if b[0] in self.place:
                    found[b] = min(place, found.get(b, place))
        return found

    @functools.cached_property
    def graph(self) -> Graph:
        """What strategies see: nodes named as the operations that they stand for."""
        step, ops = self.step, self.step.ops
        savers: dict[int, dict[Tensor, None]] = defaultdict(dict)
        for i, place in self.gradients.items():
            savers[place].update((b, None) for b in step.reads[i] if b[0] in self.place)
        nodes = []
        for k, i in enumerate(self.numbers):
            inside = [b for b in step.reads[i] if b[0] in self.place]
            read = tuple(map(self._ref, inside))
            sizes = [step.size(b) for b in step.makes[i]]
            cost = Cost(
                saved_tensors=tuple(map(self._ref, savers[k])),
                differentiable_inputs=read,
                forward_bytes=sum(sizes),
                backward_bytes=sum(map(step.size, inside)),
                flops=ops[i].work,
                backward_flops=2 * ops[i].work,
                obstacle="it is stateful" if ops[i].is_stateful else None,
            )
            specs = tuple(Spec((None, size // 4), "float32") for size in sizes)
            nodes.append(Node(ops[i].name, read, specs, ops[i].type, cost=cost))
        # Gradients come from what nothing else on the way reads: the loss, or its parts.
        inner = {ref.node for node in nodes for ref in node.inputs}
        ends = tuple(ref for node in nodes if node.name not in inner for ref in node.made)
        return Graph(tuple(nodes), {}, ends, batch_size=1)

    def even_cuts(self) -> list[Cut]:
        """Cuts into about as many segments as each has blocks."""
        width = max(1, round(len(self.numbers) ** 0.5))
        return [Cut(i) for i in self.numbers[width - 1 : -1 : width]]

    def cuts_behind(self, ends: Iterable[int]) -> list[Cut]:
        """Cuts behind the last blocks before some operations; none for operations behind all blocks."""
        places = {bisect.bisect_right(self.numbers, end) - 1 for end in ends if end <= self.numbers[-1]}
        return [Cut(self.numbers[place]) for place in sorted(places) if place >= 0]

    def _ref(self, buffer: Tensor) -> Ref:
        return Ref(self.step.ops[buffer[0]].name, self.step.makes[buffer[0]].index(buffer))

    def cuts(self, plan: Plan) -> list[Cut]:
        """The cuts of a plan of the graph."""
        number = {self.step.ops[i].name: i for i in self.numbers}
        return without_last(self._cuts(plan.segments, number))

    def _cuts(self, segments: Iterable[Segment], number: Mapping[str, int]) -> Iterable[Cut]:
        for segment in segments:
            inner = () if segment.inner is None else tuple(self._cuts(segment.inner.segments, number))
            yield Cut(number[segment.nodes[-1]], segment.mode == "keep", inner[:-1], offload=segment.offload)


def without_last(cuts: Iterable[Cut]) -> list[Cut]:
    """Cuts without those of kept segments at the end: what is kept before the call needs no cut behind it."""
    found = list(cuts)
    while found and found[-1].keep:
        found.pop()
    return found


def blocks(step: Step, call: int) -> Blocks | None:
    """The blocks before a gradient call; None if it reads no planned buffer."""
    ops = step.ops
    saved = {b for i in step.order if ops[i].call == call for b in step.reads[i] if ops[b[0]].call < call}
    way: set[int] = set()
    stack = [b[0] for b in saved if not ops[b[0]].is_gradient]
    while stack:
        i = stack.pop()
        if i not in way and ops[i].call < call and not ops[i].is_gradient:
            way.add(i)
            stack += [t[0] for t in ops[i].inputs]
    numbers = tuple(i for i in step.order if i in way and step.makes[i])
    return Blocks(step, call, numbers) if numbers else None


def places(blocks: Blocks, most: int, near: Sequence[int] = ()) -> list[int]:
    """Positions among blocks where segments may start: all, or some.

    Args:
        blocks: The blocks.
        most: How many about: evenly spaced ones, each where little is alive.
        near: Positions around which there are as many again.
    """
    n = len(blocks.numbers)
    if n <= most:
        return list(range(n + 1))
    change = np.zeros(n + 2, np.int64)
    for k, i in enumerate(blocks.numbers):
        for b in blocks.step.makes[i]:
            last = max((blocks.place[j] for j in blocks.step.readers.get(b, ()) if j in blocks.place), default=k)
            change[k + 1] += blocks.step.size(b)
            change[last + 1] -= blocks.step.size(b)
    alive = np.cumsum(change)
    bounds = np.linspace(1, n, most, dtype=int)
    chosen = {start + int(alive[start:end].argmin()) for start, end in itertools.pairwise(bounds) if start < end}
    width = most // (2 * len(near)) if near else 0
    around = {at + step for at in near for step in range(-width, width + 1)}
    return sorted({0, n} | chosen | {at for at in around if 0 < at < n})
