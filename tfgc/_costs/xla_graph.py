"""A graph as XLA compiles it: nodes whose outputs are fused into what reads them make no buffer.

A call shows which of its outputs could be fused; whether one is depends on who reads it. A fused output is replaced by
what it is made of, in what later nodes read and save; it counts as a view of the largest of that, which is how its
cotangent flows.
"""

import collections
import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping

from tfgc._core.graph import Graph, Node
from tfgc._core.tensors import Ref
from tfgc._costs.gradient_graphs import Footprint
from tfgc._costs.xla_functions import added
from tfgc._costs.xla_fusion import PADS

# What makes no zeros along with its result: no elementwise operation, or one whose result has another shape than they.
_APART = {"", *PADS}


def fused(graph: Graph, footprints: Mapping[str, Footprint]) -> Graph:
    """The graph in which only what XLA writes to memory makes a buffer; nodes without a footprint stay as they are."""
    in_memory = {*graph.outputs, *_shared(graph, footprints)}
    for node in graph.nodes:
        if node.name in footprints:
            refs = tuple(dict.fromkeys(node.inputs))
            in_memory.update(refs[i] for i in footprints[node.name].memory_inputs)
        else:
            in_memory.update(node.inputs)
    behind: dict[Ref, tuple[Ref, ...]] = {}
    nodes = [
        _fused(graph, _with_zeros(node, footprints), footprints.get(node.name), in_memory, behind)
        for node in graph.nodes
    ]
    if any(footprint.is_untiled for footprint in footprints.values()):
        nodes = [_with_workspace(node, footprints.get(node.name)) for node in nodes]
    gone = {ref for ref, made_of in behind.items() if ref not in made_of}
    pairs = enumerate(itertools.pairwise(graph.nodes), 1)
    joined = [i for i, (made, reads) in pairs if any(ref in gone and ref.node == made.name for ref in reads.inputs)]
    return dataclasses.replace(graph, nodes=tuple(nodes), xla=True, joined=frozenset(joined))


def _shared(graph: Graph, footprints: Mapping[str, Footprint]) -> Iterator[Ref]:
    """What several nodes read: it is written once, but for concatenations, which all of them read from their parts."""
    readers = collections.Counter(ref for node in graph.nodes for ref in set(node.inputs))
    return (ref for ref, count in readers.items() if count > 1 and _made_by(ref, footprints) != "ConcatV2")


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


def _fused(
    graph: Graph, node: Node, footprint: Footprint | None, in_memory: set[Ref], behind: dict[Ref, tuple[Ref, ...]]
) -> Node:
    """One node; notes in `behind` what each of its outputs is made of that is in memory."""
    cost = node.cost
    if footprint is None or cost is None:
        return node
    refs = tuple(dict.fromkeys(node.inputs))
    saved, internal = _replaced(cost.saved_tensors, behind), list(cost.saved_internal_bytes)
    aliases = list(cost.aliases)
    traces = [cost.forward_trace, cost.forward_saving_trace]
    dropped: set[int] = set()
    for i, (ref, output) in enumerate(zip(node.made, footprint.fused_outputs)):
        if output is None or ref in in_memory:
            continue
        made_of = _replaced([refs[k] for k in output.inputs], behind)
        masks = bool(output.saved) and output.saved == output.drawn and bool(made_of)
        if masks:
            # What adds the result up draws it, too, and stores which numbers stay in place of those that it drew.
            for k in output.drawn:
                drawn, internal[k] = internal[k], min(internal[k], graph.elements(node))
                traces[1] = _replacing(traces[1], drawn, internal[k])
        if output.inside and not masks:
            # The output stands for one buffer inside, the largest that is saved.
            if output.saved:
                saved = (*saved, ref)
                largest = max(output.saved, key=internal.__getitem__)
                dropped.add(largest)
                traces[1] = _without(traces[1], internal[largest])
            behind[ref] = (ref, *made_of)
        elif made_of:
            behind[ref] = made_of
            aliases[i] = max(made_of, key=graph.bytes)
            traces = [_without(trace, graph.bytes(ref)) for trace in traces]
            saved = tuple(dict.fromkeys(r for s in saved for r in (made_of if s == ref else (s,))))
    return dataclasses.replace(
        node,
        inputs=_replaced(node.inputs, behind),
        cost=dataclasses.replace(
            cost,
            saved_tensors=tuple(dict.fromkeys(saved)),
            saved_internal_bytes=tuple(n for i, n in enumerate(internal) if i not in dropped),
            aliases=tuple(aliases),
            forward_trace=traces[0],
            forward_saving_trace=traces[1],
        ),
    )


def _without(trace: tuple[int, ...], size: int) -> tuple[int, ...]:
    """A byte trace without the last buffer of that size."""
    places = [i for i, count in enumerate(trace) if count == size]
    return trace[: places[-1]] + trace[places[-1] + 1 :] if places else trace


def _replacing(trace: tuple[int, ...], size: int, other: int) -> tuple[int, ...]:
    """A byte trace whose last buffer of a size has another size."""
    return (*_without(trace, size), other) if size in trace else trace


def _replaced(refs: Iterable[Ref], behind: Mapping[Ref, tuple[Ref, ...]]) -> tuple[Ref, ...]:
    return tuple(dict.fromkeys(root for ref in refs for root in behind.get(ref, (ref,))))
