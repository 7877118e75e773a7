"""What a plan is worth: its predicted peak and work beside what no plan can better."""

import dataclasses

from tfgc._core.buffers import Buffers
from tfgc._core.plan import Outlook, Plan
from tfgc._simulate import simulator, step_events


def with_outlook(graph, plan):
    """Return `plan` with its `Outlook`, and with what each segment stores and costs."""
    if not graph.sizes_known:
        return plan
    prediction = simulator.predict(graph, plan)
    plain = prediction
    if [segment.mode for segment in plan.segments] != ["keep"]:
        plain = simulator.predict(graph, Plan.from_cuts(graph, [], strategy="keep_all"))
    floor_bytes, floor_node = floor(graph)
    outlook = Outlook(
        peak_bytes=prediction.peak_bytes,
        node=prediction.node,
        phase=prediction.phase,
        plain_bytes=plain.peak_bytes,
        floor_bytes=floor_bytes,
        floor_node=floor_node,
        overhead=prediction.overhead,
        least_overhead=_least_again(graph, prediction.peak_bytes) / max(prediction.plain_work, 1e-300),
        unit=prediction.unit,
        whole_step=graph.whole_step,
    )
    works, _ = step_events.works(graph)
    return dataclasses.replace(plan, outlook=outlook, segments=_costed(graph, works, plan.segments, set()))


def floor(graph):
    """The least peak of any plan, and the node whose own forward or backward pass sets it."""
    buffers, least = Buffers.of(graph), (0, graph.nodes[0].name)
    for i, node in enumerate(graph.nodes):
        made = sum(buffers.size[m] for m in buffers.makes[i]) if buffers.takes[i] else 0
        crest = min(buffers.forward[i], buffers.keeping[i])
        need = sum(buffers.size[x] for x in buffers.reads[i]) + crest - min(made, crest)
        if buffers.gradients[i] is not None:
            kept = sum(buffers.size[x] for x in buffers.keeps[i]) + buffers.internal[i]
            need = max(need, kept + buffers.gradients[i] + buffers.backward[i])
        least = max(least, (need, node.name), key=lambda x: x[0])
    loss = sum(buffers.size[x] for x in buffers.outputs) + buffers.loss
    return max(least, (loss, graph.nodes[-1].name), key=lambda x: x[0])


def _least_again(graph, peak):
    """Work that any plan of this peak repeats at least.

    When the loss is there, all that a backward pass reads is in memory or is to
    be made again. At most `peak` bytes are in memory; giving up the buffers that cost least
    work a byte first, and parts of them, is a bound from below.
    """
    buffers, (works, _) = Buffers.of(graph), step_events.works(graph)
    kept, again = sum(buffers.internal), []
    for i in range(len(graph)):
        own = [m for m in buffers.makes[i] if buffers.keepers[m]]
        size = sum(buffers.size[m] for m in own) + buffers.internal[i]
        kept += sum(buffers.size[m] for m in own)
        if size:
            again.append((works[i][0] / size, size))
    excess, least = kept - peak, 0.0
    for price, size in sorted(again):
        if excess <= 0:
            break
        least += price * min(size, excess)
        excess -= size
    return least


def _costed(graph, works, segments, held):
    """The segments with what they store on top of `held` buffers, would keep inside, and cost to run again."""
    buffers, costed = Buffers.of(graph), []
    for segment in segments:
        positions = [graph.position[name] for name in segment.nodes]
        runs = buffers.needed(positions)
        made = {m for i in positions for m in buffers.makes[i]}
        kept = {x for i in positions for x in buffers.keeps[i]}
        inputs = ({x for i in runs for x in buffers.reads[i]} | kept) - made
        inside = sum(buffers.size[x] for x in kept - held) + sum(buffers.internal[i] for i in positions)
        outside = sum(buffers.size[x] for x in inputs - held)
        stored, new = (outside, inputs) if segment.mode == "recompute" else (inside, kept)
        inner = segment.inner
        if inner is not None:
            inner = dataclasses.replace(inner, segments=_costed(graph, works, inner.segments, held))
        held = held | new
        work = sum(works[i][0] for i in runs)
        costed.append(
            dataclasses.replace(
                segment, stored_bytes=stored, inside_bytes=inside, input_bytes=outside, work=work, inner=inner
            )
        )
    return tuple(costed)
