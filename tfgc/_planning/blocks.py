"""The forward part of a step as a `Graph` for strategies: a node for each operation that makes a planned buffer.

What a node saves are the buffers that gradients read; its backward pass makes a gradient for each input. That is what
strategies need to compare cuts; the winner is simulated operation by operation.
"""

import dataclasses
from collections.abc import Iterable

from tfgc._core.graph import Cost, Graph, Node
from tfgc._core.plan import Plan
from tfgc._core.segments import Segment
from tfgc._core.tensors import Ref, Spec
from tfgc._rewrite.recompute import Cut
from tfgc._step.step import Step, Tensor


@dataclasses.dataclass(frozen=True)
class Blocks:
    """The way of a step to the buffers that one gradient call reads.

    Attributes:
        graph: The nodes, named as the operations that they stand for.
        number: The number of each of these operations, by name.
    """

    graph: Graph
    number: dict[str, int]

    def cuts(self, plan: Plan) -> list[Cut]:
        """The cuts of a plan of the graph."""
        found = list(self._cuts(plan.segments))
        while found and found[-1].keep:  # what is kept before the call needs no cut behind it
            found.pop()
        return found

    def _cuts(self, segments: Iterable[Segment]) -> Iterable[Cut]:
        for segment in segments:
            inner = () if segment.inner is None else tuple(self._cuts(segment.inner.segments))
            yield Cut(self.number[segment.nodes[-1]], segment.mode == "keep", inner[:-1])


def blocks(step: Step, call: int) -> Blocks | None:
    """The blocks before a gradient call, the first of which is 1; None if it reads no planned buffer."""
    ops = step.ops
    saved = {
        b for i in step.order if ops[i].call == call for b in step.reads[i] if ops[b[0]].call < call
    }  # fmt: skip
    way: set[int] = set()
    stack = [b[0] for b in saved if not ops[b[0]].is_gradient]
    while stack:
        i = stack.pop()
        if i not in way and ops[i].call < call:
            way.add(i)
            stack += [t[0] for t in ops[i].inputs]
    numbers = [i for i in step.order if i in way and step.makes[i]]
    if not numbers:
        return None
    place = {i: k for k, i in enumerate(numbers)}
    savers = _savers(step, call, place)
    nodes = []
    for i in numbers:
        inside = [b for b in step.reads[i] if b[0] in place]
        read = tuple(_ref(step, b) for b in inside)
        sizes = [step.size(b) for b in step.makes[i]]
        kept = tuple(_ref(step, b) for b in savers.get(i, ()))
        cost = Cost(
            saved_tensors=kept,
            forward_trace=tuple(sizes),
            forward_saving_trace=tuple(sizes),
            backward_trace=tuple(map(step.size, inside)),
            differentiable_inputs=read,
            flops=ops[i].work,
            backward_flops=2 * ops[i].work,
            obstacle="it is stateful" if ops[i].is_stateful else None,
        )
        specs = tuple(Spec((None, size // 4), "float32") for size in sizes)
        nodes.append(Node(ops[i].name, read, specs, ops[i].type, cost=cost))
    # Gradients come from what nothing else on the way reads: the loss, or its parts.
    inner = {ref for node in nodes for ref in node.inputs}
    ends = tuple(ref for node in nodes for ref in node.made if ref not in inner)
    graph = Graph(tuple(nodes), {}, ends, batch_size=1)
    return Blocks(graph, {ops[i].name: i for i in numbers})


def _ref(step: Step, buffer: Tensor) -> Ref:
    return Ref(step.ops[buffer[0]].name, step.makes[buffer[0]].index(buffer))


def _savers(step: Step, call: int, place: dict[int, int]) -> dict[int, list[Tensor]]:
    """For each operation of the way the buffers that its backward pass reads.

    A gradient belongs to the last operation of those whose buffers it reads, or else that its inputs belong to.
    """
    of: dict[int, int] = {}
    found: dict[int, dict[Tensor, None]] = {}
    end = max(place, key=place.__getitem__)
    for i in step.order:
        if step.ops[i].call != call:
            continue
        read = [b for b in step.reads[i] if b[0] in place]
        before = [of[t[0]] for t in step.ops[i].inputs if t[0] in of]
        of[i] = min(before, key=place.__getitem__) if before else end
        if read:
            of[i] = max((b[0] for b in read), key=place.__getitem__)
            found.setdefault(of[i], {}).update(dict.fromkeys(read))
    return {i: list(buffers) for i, buffers in found.items()}
