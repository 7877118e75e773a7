"""A graph as XLA compiles it: nodes whose outputs are fused into what reads them make no buffer.

A call shows which of its outputs could be fused; whether one is depends on who reads it. A fused output is replaced by
what it is made of, in what later nodes read and save; it counts as a view of the largest of that, which is how its
cotangent flows.
"""

import collections
import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence

from tfgc._core.graph import Cost, Graph, Node
from tfgc._core.tensors import Ref
from tfgc._costs.gradient_graphs import Footprint
from tfgc._costs.xla_functions import added
from tfgc._costs.xla_fusion import PADS, FusedOutput

# What makes no zeros along with its result: no elementwise operation, or one whose result has another shape than they.
_APART = {"", *PADS}


def fused(graph: Graph, footprints: Mapping[str, Footprint]) -> Graph:
    """The graph in which only what XLA writes to memory makes a buffer; nodes without a footprint stay as they are."""
    tensors = _Tensors(graph, footprints)
    nodes = [_fused(tensors, _with_zeros(node, footprints), footprints.get(node.name)) for node in graph.nodes]
    if any(footprint.is_untiled for footprint in footprints.values()):
        nodes = [_with_workspace(node, footprints.get(node.name)) for node in nodes]
    gone = {ref for ref, made_of in tensors.behind.items() if ref not in made_of and ref not in tensors.copied}
    pairs = enumerate(itertools.pairwise(graph.nodes), 1)
    joined = [i for i, (made, reads) in pairs if any(ref in gone and ref.node == made.name for ref in reads.inputs)]
    return dataclasses.replace(graph, nodes=tuple(nodes), xla=True, joined=frozenset(joined))


class _Tensors:
    """Which tensors of a graph XLA writes to memory, found out as its nodes are gone through in order."""

    def __init__(self, graph: Graph, footprints: Mapping[str, Footprint]) -> None:
        self.graph = graph
        self.behind: dict[Ref, tuple[Ref, ...]] = {}  # what each other one is made of that is in memory
        self.copied: set[Ref] = set()  # those of them that one node reads from memory, and makes for itself
        self._written = {*graph.outputs}
        self._readers: dict[Ref, list[str]] = collections.defaultdict(list)  # from memory
        # What several nodes read is written once, but for concatenations, which all of them read from their parts.
        readers = collections.Counter(ref for node in graph.nodes for ref in set(node.inputs))
        several = (ref for ref, count in readers.items() if count > 1)
        self._shared = {ref for ref in several if _made_by(ref, footprints) != "ConcatV2"}
        for node in graph.nodes:
            refs = tuple(dict.fromkeys(node.inputs))
            if node.name not in footprints:
                self._written.update(refs)
                continue
            for i in footprints[node.name].memory_inputs:
                self._readers[refs[i]].append(node.name)

    def replaced(self, refs: Iterable[Ref]) -> tuple[Ref, ...]:
        """Tensors, with what others are made of in their place."""
        return tuple(dict.fromkeys(root for ref in refs for root in self.behind.get(ref, (ref,))))

    def is_written(self, ref: Ref, output: FusedOutput, made_of: Sequence[Ref]) -> bool:
        """Whether an output that could be computed again is in memory.

        Of several nodes that read it one may read memory: if it is made of one tensor that is no larger, the others
        compute it again.
        """
        readers = self._readers.get(ref, [])
        if ref in self._written or ref not in self._shared:
            return ref in self._written or bool(readers)
        again = not output.inside and len(made_of) == 1 and self.graph.bytes(made_of[0]) <= self.graph.bytes(ref)
        if again and len(readers) == 1:
            self.copied.add(ref)
        return ref not in self.copied

    def copied_by(self, node: Node) -> list[Ref]:
        """The tensors that a node reads from memory, and makes for itself."""
        return [ref for ref in dict.fromkeys(node.inputs) if ref in self.copied and node.name in self._readers[ref]]


def _made_by(ref: Ref, footprints: Mapping[str, Footprint]) -> str:
    """The elementwise operation that makes a tensor, or empty if none does."""
    output = footprints[ref.node].fused_outputs[ref.index] if ref.node in footprints else None
    return "" if output is None else output.operation


def _with_zeros(node: Node, footprints: Mapping[str, Footprint]) -> Node:
    """A node that counts the zeros of its gradient, if a kernel that makes its input can make them along with it."""
    footprint = footprints.get(node.name)
    if node.cost is None or footprint is None or not footprint.zero_bytes:
        return node
    if _made_by(node.inputs[0], footprints) in _APART:
        return node
    return dataclasses.replace(node, cost=dataclasses.replace(node.cost, zero_bytes=footprint.zero_bytes))


def _with_workspace(node: Node, footprint: Footprint | None) -> Node:
    """A node whose products cuBLAS computes."""
    if node.cost is None or footprint is None:
        return node
    forward, backward = footprint.workspace.forward, footprint.workspace.backward
    cost = dataclasses.replace(
        node.cost,
        forward_trace=added(node.cost.forward_trace, forward),
        forward_saving_trace=added(node.cost.forward_saving_trace, forward),
        backward_trace=added(node.cost.backward_trace, backward),
        resident_bytes=node.cost.resident_bytes + footprint.merged_weight_bytes,
    )
    return dataclasses.replace(node, cost=cost)


def _fused(tensors: _Tensors, node: Node, footprint: Footprint | None) -> Node:
    """One node; notes in `tensors` what each of its outputs is made of that is in memory."""
    if footprint is None or node.cost is None:
        return node
    graph, behind = tensors.graph, tensors.behind
    cost = _with_copies(node.cost, [(ref, graph.bytes(ref)) for ref in tensors.copied_by(node)])
    refs = tuple(dict.fromkeys(node.inputs))
    saved, internal = tensors.replaced(cost.saved_tensors), list(cost.saved_internal_bytes)
    aliases = list(cost.aliases)
    traces = [cost.forward_trace, cost.forward_saving_trace, cost.backward_trace]
    dropped: set[int] = set()
    for i, (ref, output) in enumerate(zip(node.made, footprint.fused_outputs)):
        made_of = () if output is None else tensors.replaced(refs[k] for k in output.inputs)
        if output is None or tensors.is_written(ref, output, made_of):
            continue
        masks = output.masks if made_of else ()
        for k, count in masks:
            # What adds the result up draws it, too, and stores which numbers stay in place of those that it drew.
            drawn, internal[k] = internal[k], min(internal[k], count)
            traces[1:] = _replacing(traces[1], drawn, internal[k]), _replacing(traces[2], -drawn, -internal[k])
        if output.inside and not masks:
            # The output stands for one buffer inside, the largest that is saved.
            if output.saved:
                saved = (*saved, ref)
                largest = max(output.saved, key=internal.__getitem__)
                dropped.add(largest)
                traces[1:] = _without(traces[1], internal[largest]), _without(traces[2], -internal[largest])
            behind[ref] = (ref, *made_of)
        elif made_of:
            behind[ref] = made_of
            aliases[i] = max(made_of, key=graph.bytes)
            traces[:2] = (_without(trace, graph.bytes(ref)) for trace in traces[:2])
            saved = tuple(dict.fromkeys(r for s in saved for r in (made_of if s == ref else (s,))))
    return dataclasses.replace(
        node,
        inputs=tensors.replaced(node.inputs),
        cost=dataclasses.replace(
            cost,
            saved_tensors=tuple(dict.fromkeys(saved)),
            saved_internal_bytes=tuple(n for i, n in enumerate(internal) if i not in dropped),
            aliases=tuple(aliases),
            forward_trace=traces[0],
            forward_saving_trace=traces[1],
            backward_trace=traces[2],
        ),
    )


def _with_copies(cost: Cost, copied: Iterable[tuple[Ref, int]]) -> Cost:
    """The cost of a node that makes some of its inputs for itself, each of so many bytes."""
    for ref, size in copied:
        kept = ref in cost.saved_tensors
        cost = dataclasses.replace(
            cost,
            saved_tensors=tuple(saved for saved in cost.saved_tensors if saved != ref),
            saved_internal_bytes=(*cost.saved_internal_bytes, *[size] * kept),
            forward_trace=(size, *cost.forward_trace, -size),
            forward_saving_trace=(size, *cost.forward_saving_trace, *[-size] * (not kept)),
            backward_trace=(*cost.backward_trace, *[-size] * kept),
        )
    return cost


def _without(trace: tuple[int, ...], size: int) -> tuple[int, ...]:
    """A byte trace without the last change of that size."""
    places = [i for i, count in enumerate(trace) if count == size]
    return trace[: places[-1]] + trace[places[-1] + 1 :] if places else trace


def _replacing(trace: tuple[int, ...], size: int, other: int) -> tuple[int, ...]:
    """A byte trace whose last change of a size has another size."""
    last = max((i for i, change in enumerate(trace) if change == size), default=None)
    return trace if last is None else (*trace[:last], other, *trace[last + 1 :])
