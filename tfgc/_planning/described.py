"""A rewritten step as a `Plan`, which prints, explains and draws it: segments of operations, and what they store."""

import bisect
from collections import defaultdict
from collections.abc import Iterator

from tfgc._core.plan import Plan
from tfgc._core.segments import Outlook, Phase, Segment
from tfgc._planning.step_plans import Rewritten
from tfgc._rewrite.liveness import timeline
from tfgc._step.step import Op, Step, Tensor


def plan_of(made: Rewritten, strategy: str, held_bytes: int, budget_bytes: int | None, batch_size: int | None) -> Plan:
    """The plan by which a step was rewritten.

    Args:
        made: The rewritten step.
        strategy: The name of what chose its cuts.
        held_bytes: What a step holds all the time besides its own buffers: variables and arguments.
        budget_bytes: The budget that it was chosen for, or None.
        batch_size: Samples in the batch that its bytes are for.
    """
    step = made.step
    forward = [i for i in step.order if _is_forward(step, i)]
    model = tuple(f"{step.ops[i].name}: {step.ops[i].type}" for i in forward)
    return Plan(
        tuple(_segments(made, forward)), strategy, model, {}, batch_size, _outlook(made, held_bytes, budget_bytes)
    )


def _is_forward(step: Step, number: int) -> bool:
    op = step.ops[number]
    return bool(step.makes[number]) and not (op.is_gradient or op.segment)


def _segments(made: Rewritten, forward: list[int]) -> Iterator[Segment]:
    step = made.step
    number = {step.ops[i].name: i for i in forward}
    bounds = sorted({cut.behind for cut in made.cuts})
    kept = {cut.behind: cut.keep for cut in made.cuts}
    copies: dict[int, list[Op]] = defaultdict(list)  # by the segment in which the operation that they copy lies
    for op in step.ops.values():
        if op.segment:
            copies[bisect.bisect_left(bounds, op.traced)].append(op)
    inside: dict[int, list[int]] = defaultdict(list)
    for i in number.values():
        inside[bisect.bisect_left(bounds, i)].append(i)
    stored: set[Tensor] = set()
    for place in sorted(inside):
        nodes, again = inside[place], copies[place]
        read = {step.buffer(t) for op in again for t in op.inputs if not step.ops[t[0]].segment}
        late = {b for i in nodes for b in step.makes[i] if any(_is_late(step, r) for r in step.readers.get(b, ()))}
        new = {b for b in read | late if step.is_planned(b)} - stored
        stored |= new
        recomputes = bool(again) and not (place < len(bounds) and kept[bounds[place]])
        dropped = {op.traced for op in again}
        yield Segment(
            tuple(step.ops[i].name for i in nodes),
            "recompute" if recomputes else "keep",
            stored_bytes=sum(map(step.size, new)),
            inside_bytes=sum(step.size(b) for i in nodes if i in dropped for b in step.makes[i]),
            input_bytes=sum(step.size(b) for b in read if step.is_planned(b)),
            work=sum(op.work for op in again),
        )


def _is_late(step: Step, number: int) -> bool:
    op = step.ops[number]
    return op.is_gradient and not op.segment


def _outlook(made: Rewritten, held_bytes: int, budget_bytes: int | None) -> Outlook:
    step = made.step
    alive = timeline(step)
    at = max(range(len(alive)), key=alive.__getitem__, default=0)
    op = step.ops[step.order[at]] if alive else None
    phase: Phase = "forward" if op is None or not (op.segment or op.is_gradient) else "backward"
    if op is not None and op.segment:
        phase = "replay"
    name, peak = "" if op is None else op.name, made.peak_bytes
    return Outlook(
        peak, name, phase, made.plain_bytes, peak, name, made.overhead, made.overhead, "flop", True,
        peak + held_bytes, made.plain_bytes + held_bytes, budget_bytes,
    )  # fmt: skip
