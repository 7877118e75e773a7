"""What a plan is worth: its predicted peak and work beside what no plan can beat."""

import dataclasses
from collections.abc import Sequence

from tfgc._core.buffers import Buffers
from tfgc._core.graph import Graph
from tfgc._core.plan import Plan
from tfgc._core.segments import Outlook, Segment
from tfgc._simulate import host_copies, simulator


def with_outlook(graph: Graph, plan: Plan) -> Plan:
    """Return `plan` with its `Outlook`, and with what each segment stores and costs."""
    if not graph.sizes_known:
        return plan
    prediction = simulator.predict(graph, plan)
    floor_bytes, floor_node = graph.once(floor)
    outlook = Outlook(
        peak_bytes=prediction.peak_bytes,
        node=prediction.node,
        phase=prediction.phase,
        plain_bytes=graph.once(plain_peak),
        floor_bytes=floor_bytes,
        floor_node=floor_node,
        overhead=prediction.overhead,
        least_overhead=_least_replay_work(graph, prediction.peak_bytes + prediction.host_bytes)
        / max(prediction.plain_work, 1e-300),
    )
    return dataclasses.replace(plan, outlook=outlook, segments=_costed(graph, plan.segments, set()))


def plain_peak(graph: Graph) -> int:
    """The peak in bytes if nothing is recomputed."""
    return simulator.predict(graph, None).peak_bytes


def floor(graph: Graph) -> tuple[int, str]:
    """The least peak in bytes of any plan, and the node whose own forward or backward pass sets it.

    Weights, their gradients and optimizer slots are left out.
    """
    b, least, floor_node = Buffers.of(graph), 0, graph.nodes[0].name
    for i, node in enumerate(graph.nodes):
        need = sum(b.size[x] for x in b.inputs[i]) + b.forward_peak[i]
        gradient_bytes = b.gradient_bytes_at[i]
        if gradient_bytes is not None:
            need = max(need, sum(b.size[x] for x in b.saved[i]) + gradient_bytes + b.backward_peak[i])
        if need > least:
            least, floor_node = need, node.name
    loss = sum(b.size[x] for x in b.graph_outputs) + b.loss_bytes
    return (loss, graph.nodes[-1].name) if loss > least else (least, floor_node)


def _least_replay_work(graph: Graph, peak: int) -> float:
    """Work that any plan of this peak, in bytes on the device and the host together, repeats at least."""
    # When the loss is there, everything that a backward pass reads is in memory or has to be computed again. At most
    # `peak` bytes are in memory; giving up the buffers that cost the least work per byte first, and parts of them, is a
    # lower bound.
    b, least = Buffers.of(graph), 0.0
    saved = [sum(b.size[x] for x in b.outputs[i] if b.savers[x]) for i in range(len(graph))]
    excess = sum(saved) - peak
    for work_per_byte, size in sorted((cost.flops / size, size) for cost, size in zip(graph.costs, saved) if size):
        least += work_per_byte * max(0, min(size, excess))
        excess -= size
    return least


def _costed(graph: Graph, segments: Sequence[Segment], held: set[int]) -> tuple[Segment, ...]:
    """The segments with what they store on top of `held` buffers, would store if kept, and cost to run again."""
    b, costed = Buffers.of(graph), []
    on_device = host_copies.on_device(b, segments) if any(segment.offload for segment in segments) else set()
    for segment in segments:
        positions = [graph.position[name] for name in segment.nodes]
        runs = b.replayed(positions)
        saved = {x for i in positions for x in b.saved[i]}
        inputs = ({x for i in runs for x in b.inputs[i]} | saved) - {x for i in positions for x in b.outputs[i]}
        on_host = inputs - on_device if segment.offload else set()
        new, inner = inputs - on_host if segment.mode == "recompute" else saved, segment.inner
        if inner is not None:
            inner = dataclasses.replace(inner, segments=_costed(graph, inner.segments, held))
        costed.append(
            dataclasses.replace(
                segment,
                stored_bytes=sum(b.size[x] for x in new - held),
                inside_bytes=sum(b.size[x] for x in saved - held),
                input_bytes=sum(b.size[x] for x in inputs - held),
                work=sum(graph.costs[i].flops for i in runs),
                inner=inner,
                host_bytes=sum(b.size[x] for x in on_host) if segment.offload else None,
            )
        )
        held = held | new
    return tuple(costed)
