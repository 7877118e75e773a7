"""A plan in words: for each segment what is stored, what is run again, and why."""

from collections.abc import Iterator, Sequence

from tfgc._core import confirmation
from tfgc._core.segments import Outlook, Segment, Segmentation
from tfgc._core.text import HARD_SPACE, filled, table
from tfgc._units import format_bytes, format_needs, format_percent, format_work

_PHASES = {
    "forward": "runs forward",
    "loss": "computes the loss",
    "replay": "runs again",
    "backward": "runs backward",
}
_COLUMNS = ("", "mode", "stores", "in place of", "run again", "nodes (how many)")
_UNKNOWN = "Sizes are unknown, so nothing is predicted: plan with batch_size, and with input_shapes or example."
_KEPT = " Until then everything is kept, which never needs more than plain training."
_PEAK = f"<-{HARD_SPACE}the{HARD_SPACE}peak{HARD_SPACE}is{HARD_SPACE}here"


def explain(plan: Segmentation) -> str:
    """Return the text of `Plan.explain`."""
    per = "one sample" if plan.batch_size is None else f"a batch of {plan.batch_size}"
    again = sum(s.mode == "recompute" for s in plan.segments)
    confirmed = confirmation.of(plan.options)
    settings = ", ".join(f"{k}={v!r}" for k, v in plan.options.items() if not (confirmed and k == confirmation.OPTION))
    made = f"{plan.strategy!r} ({settings})" if settings else repr(plan.strategy)
    count = f"{len(plan.segments)} segment{'s' * (len(plan.segments) > 1)}"
    lines = [f"Plan by {made} for {per}: {count}, {again} of them recomputed."]
    if plan.outlook is None:
        lines.append(_UNKNOWN + ("" if again else _KEPT))
        return filled([*lines, ""]) + "\n" + table(_COLUMNS, _rows(plan, None), (0, 1, 5))
    lines += [*_outlook(plan, plan.outlook, confirmed), ""]
    lines.append(
        "'stores' is the memory that a segment holds from its forward to its backward pass, and that no earlier "
        "segment holds already: a recomputed one stores its inputs, a kept one all that its backward pass reads."
    )
    on_host = sum(segment.host_bytes or 0 for segment in plan.segments)
    if on_host:
        lines.append(
            f"{format_bytes(on_host)} of inputs wait in host memory, each fetched back while the segment behind it is "
            "differentiated. Without an accelerator nothing is copied, and they stay where they are."
        )
    if plan.is_nested:
        lines.append("Indented: how the replay of the segment above is split again, and what that stores meanwhile.")
    return filled(lines) + "\n" + table(_COLUMNS, _rows(plan, plan.outlook), range(6))


def _outlook(plan: Segmentation, outlook: Outlook, confirmed: confirmation.Confirmation | None) -> Iterator[str]:
    words = needs(outlook)
    yield f"{words[0].upper()}{words[1:]}, most while {outlook.node!r} {_PHASES[outlook.phase]}."
    if confirmed is not None:
        yield f"{confirmed}."
    if plan.operations:
        yield f"Overhead {format_percent(outlook.overhead)} of the plain step's work. Bytes are those of live buffers."
        return
    yield from _peak_of(plan.segments, outlook)
    yield (
        f"Overhead {format_percent(outlook.overhead)} of the plain step's work, counted in floating-point operations; "
        f"no plan of this peak has less than {format_percent(outlook.least_overhead)}."
    )
    yield (
        f"No plan that cuts between nodes can go below what {outlook.floor_node!r} alone needs; this plan's "
        f"activations are {1 + outlook.gap:.3g} times that."
    )


def needs(outlook: Outlook) -> str:
    """What the step needs, and of how much; of activations where no more is known."""
    if outlook.needed_bytes is not None:
        return format_needs(outlook.needed_bytes, outlook.plain_needed_bytes, outlook.budget_bytes)
    figures = f"{format_bytes(outlook.peak_bytes)} of {format_bytes(outlook.plain_bytes)}"
    return f"needs {figures}, weights, their gradients and slots left out"


def _peak_of(segments: Sequence[Segment], outlook: Outlook) -> Iterator[str]:
    """How much of the peak is stored, and how much the running segment needs."""
    index = next((i for i, segment in enumerate(segments) if outlook.node in segment.nodes), None)
    assert index is not None
    end = index if outlook.phase == "forward" else index + 1
    stored = sum(segment.stored_bytes or 0 for segment in segments[:end])
    if not end:
        return
    where = f"segments 0 to {end - 1} store" if end > 1 else "segment 0 stores"
    yield (
        f"Then {where} {format_bytes(stored)}, and segment {index} takes {format_bytes(outlook.peak_bytes - stored)} "
        f"while it {_PHASES[outlook.phase]}."
    )


def _rows(plan: Segmentation, outlook: Outlook | None, label: str = "", peak: bool = True) -> list[list[str]]:
    """A row of cells for each segment, and for those of its replay."""
    rows: list[list[str]] = []
    for i, segment in enumerate(plan.segments):
        name = f"{label}{i}"
        margin = "  " * name.count(".")
        here = peak and outlook is not None and outlook.node in segment.nodes
        inner = [] if segment.inner is None else _rows(segment.inner, outlook, f"{name}.", here)
        note = _note(segment, outlook, last=i == len(plan.segments) - 1)
        ends = dict.fromkeys((segment.nodes[0], segment.nodes[-1]))
        nodes = f"{' ... '.join(ends)}{HARD_SPACE}({len(segment.nodes)}){note and f': {note}'}"
        nodes += f" {_PEAK}" if here and not inner else ""
        rows.append([margin + name, margin + segment.mode, *_figures(segment, outlook), nodes])
        rows += inner
    return rows


def _figures(segment: Segment, outlook: Outlook | None) -> tuple[str, str, str]:
    if outlook is None or segment.stored_bytes is None or segment.inside_bytes is None or segment.work is None:
        return "", "", ""
    if segment.mode == "keep":
        return format_bytes(segment.stored_bytes), "", ""
    return format_bytes(segment.stored_bytes), format_bytes(segment.inside_bytes), format_work(segment.work)


def _note(segment: Segment, outlook: Outlook | None, last: bool) -> str:
    """Why a segment is kept, or why running it again does not help; empty where the figures show it."""
    if segment.host_bytes:
        return f"stores {format_bytes(segment.host_bytes)} on the host"
    if segment.obstacle:
        fact, _, _advice = segment.obstacle.partition(". ")
        return f"cannot be run twice ({fact})"
    if outlook is None or segment.inside_bytes is None or segment.input_bytes is None or segment.work is None:
        return ""
    if segment.inside_bytes == 0:
        return "nothing to free"
    inputs = f"its inputs ({format_bytes(segment.input_bytes)}) are no smaller than its inside"
    if segment.mode == "keep" and last:
        return "its backward pass follows immediately"
    if segment.input_bytes >= segment.inside_bytes:
        return inputs if segment.mode == "keep" else f"no help, {inputs}"
    if segment.mode == "recompute":
        return ""
    freed = format_bytes(segment.inside_bytes - segment.input_bytes)
    return f"a replay would free {freed} for {format_work(segment.work)}"


def summary(plan: Segmentation) -> tuple[str, Sequence[str], list[list[str]]]:
    """A plan as a title, heads of columns and a row for each segment."""
    outlook, again = plan.outlook, sum(segment.mode == "recompute" for segment in plan.segments)
    per = "one sample" if plan.batch_size is None else f"a batch of {plan.batch_size}"
    title = f"by {plan.strategy!r}: {needs(outlook) if outlook else 'sizes are unknown'}\n"
    title += f"for {per}, {again} of {len(plan.segments)} segments recomputed"
    title += f", {format_percent(outlook.overhead)} more work" if outlook else ""
    rows = _rows(plan, outlook)
    return title, _COLUMNS, [[cell.replace(HARD_SPACE, " ") for cell in row] for row in rows]
