"""A rewritten step as a `Plan`, which prints, explains, draws and saves it, and the cuts of such a plan.

Its nodes are the operations of the forward part that make a planned buffer. A plan fits every step that has the same
types of them in the same order, whatever layers are called there; and a step of the same model with another loss, or
other sizes, in which each cut is found by its name.
"""

import bisect
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tfgc._core.plan import Plan
from tfgc._core.segments import Outlook, Phase, Segment
from tfgc._planning.operation_names import Names
from tfgc._planning.step_plans import Rewritten
from tfgc._rewrite.liveness import timeline
from tfgc._rewrite.on_host import last_readers
from tfgc._rewrite.recompute import Cut
from tfgc._step.step import FROM_HOST, TO_HOST, Op, Step, Tensor


def plan_of(
    made: Rewritten,
    strategy: str,
    options: dict[str, Any],
    held_bytes: int,
    budget_bytes: int | None,
    batch_size: int | None,
) -> Plan:
    """The plan by which a step was rewritten.

    Args:
        made: The rewritten step.
        strategy: The name of what chose its cuts.
        options: Its options.
        held_bytes: What a step holds all the time besides its own buffers: variables and arguments.
        budget_bytes: The budget that it was chosen for, or None.
        batch_size: Samples in the batch that its bytes are for.
    """
    forward = _forward(made.step)
    outlook = _outlook(made, held_bytes, budget_bytes)
    segments = tuple(_segments(made, forward))
    return Plan(segments, strategy, _lines(made.step, forward), options, batch_size, outlook, operations=True)


def cuts_of(plan: Plan, step: Step) -> list[Cut] | None:
    """The cuts of a plan in a traced step; None if it is another step of the model, in which some are not to be found.

    Raises:
        PlanMismatchError: If the plan is for another model.
    """
    forward, nodes = _forward(step), [name for segment in plan.segments for name in segment.nodes]
    if plan.model == (lines := _lines(step, forward)):
        return _cuts(plan.segments, dict(zip(nodes, forward)).get)
    names = Names(step.ops[i].name for i in sorted(step.ops) if not step.ops[i].is_gradient)
    if 2 * sum(names.find(node) is not None for node in nodes) < len(nodes):
        plan.check_model(lines)
    numbers = {op.name: i for i, op in step.ops.items()}
    return _cuts(plan.segments, lambda node: numbers.get(names.find(node) or ""))


def _cuts(segments: Sequence[Segment], find: Callable[[str], int | None]) -> list[Cut] | None:
    """The cuts between segments, none behind the last one; None if one is not found, or not behind the one before."""
    found = list[Cut]()
    for segment in segments[:-1]:
        behind = find(segment.nodes[-1])
        inside = () if segment.inner is None else _cuts(segment.inner.segments, find)
        if behind is None or inside is None or (found and found[-1].behind >= behind):
            return None
        found.append(Cut(behind, segment.mode == "keep", tuple(inside), offload=segment.offload))
    return found


def _forward(step: Step) -> list[int]:
    """Numbers of the operations that a plan is made of, as traced."""
    return sorted(
        i
        for i, op in step.ops.items()
        if step.makes[i] and not (op.is_gradient or op.segment or op.call >= _last(step))
    )


def _last(step: Step) -> int:
    """The number of the last gradient call: behind it nothing is recomputed."""
    return len(step.calls)


def _lines(step: Step, forward: Sequence[int]) -> tuple[str, ...]:
    return tuple(f"{step.ops[i].type} (operation {place})" for place, i in enumerate(forward))


def _segments(made: Rewritten, forward: Sequence[int]) -> Iterator[Segment]:
    step = made.step
    cuts = sorted(made.cuts, key=lambda cut: cut.behind)
    bounds = [cut.behind for cut in cuts]
    copies: dict[int, list[int]] = defaultdict(list)  # by the segment in which the operation that they copy lies
    hosted: dict[int, int] = Counter()  # bytes that wait on the host for each segment
    readers = last_readers(step, bounds)
    for number, op in step.ops.items():
        if op.type == TO_HOST:
            hosted[readers[op.inputs[0]]] += step.size(op.inputs[0])
        elif op.segment and op.type != FROM_HOST:
            copies[bisect.bisect_left(bounds, op.traced)].append(number)
    inside: dict[int, list[int]] = defaultdict(list)
    for i in forward:
        inside[bisect.bisect_left(bounds, i)].append(i)
    stored: set[Tensor] = set()
    for place in sorted(inside):
        nodes, cut = inside[place], cuts[place] if place < len(cuts) else None
        again = [step.ops[i] for i in copies[place]]
        read = {b for op in again for b in map(step.buffer, op.inputs) if not step.ops[b[0]].segment}
        late = {b for i in nodes for b in step.makes[i] if _is_read_late(step, b)}
        made_late = (b for i in copies[place] for b in step.makes[i] if _is_read_late(step, b))
        saved = late | {(step.ops[i].traced, output) for i, output in made_late}  # by gradients of the plain step
        new = {b for b in read | late if step.is_planned(b)} - stored
        stored |= new
        offload = cut is not None and cut.offload
        recomputes = (bool(again) or offload) and not (cut is not None and cut.keep)
        yield Segment(
            tuple(step.ops[i].name for i in nodes),
            "recompute" if recomputes else "keep",
            offload,
            inner=None if cut is None or not (recomputes and cut.inside) else _inner(step, nodes, cut.inside),
            stored_bytes=sum(map(step.size, new)),
            inside_bytes=sum(map(step.size, filter(step.is_planned, saved))),
            work=sum(op.work for op in again),
            host_bytes=hosted[place] if offload else None,
        )


def _inner(step: Step, nodes: Sequence[int], cuts: Sequence[Cut]) -> Plan:
    """How the replay of a segment is cut again."""
    cuts = sorted(cuts, key=lambda cut: cut.behind)
    parts: dict[int, list[int]] = defaultdict(list)
    for i in nodes:
        parts[bisect.bisect_left([cut.behind for cut in cuts], i)].append(i)
    segments = []
    for place in sorted(parts):
        cut = cuts[place] if place < len(cuts) else None
        names = tuple(step.ops[i].name for i in parts[place])
        keeps = cut is None or cut.keep
        inner = None if cut is None or not cut.inside or keeps else _inner(step, parts[place], cut.inside)
        segments.append(Segment(names, "keep" if keeps else "recompute", inner=inner))
    return Plan(tuple(segments), "inner", ())


def _is_read_late(step: Step, buffer: Tensor) -> bool:
    readers = map(step.ops.__getitem__, step.readers.get(buffer, ()))
    return any(op.is_gradient and not op.segment for op in readers)


def _outlook(made: Rewritten, held_bytes: int, budget_bytes: int | None) -> Outlook:
    op = busiest(made.step)
    name, peak = "" if op is None else op.name, made.peak_bytes
    return Outlook(
        peak, name, "forward" if op is None else phase(op), made.plain_bytes, peak, name, made.overhead, made.overhead,
        peak + held_bytes, made.plain_bytes + held_bytes, budget_bytes,
    )  # fmt: skip


def busiest(step: Step) -> Op | None:
    """The operation at which most bytes are alive; None in a step without any."""
    alive = timeline(step)
    return step.ops[step.order[alive.index(max(alive))]] if alive else None


def phase(op: Op) -> Phase:
    """The phase of a step in which an operation runs."""
    return "replay" if op.segment else "backward" if op.is_gradient else "forward"
