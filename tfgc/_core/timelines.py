"""Pictures of memory over one training step, drawn by matplotlib with the settings of the user."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from tfgc._core.explanation import summary
from tfgc._core.segments import Segment, Segmentation
from tfgc._errors import TfgcError

_STEPS = (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1, ""), (1e-3, "m")
Points = Sequence[tuple[float, float]]


def require(what: str, extra: str) -> Any:
    """Import matplotlib, or say which extra installs it."""
    try:
        import matplotlib
        import matplotlib.figure
    except ImportError as error:
        raise TfgcError(f'{what} needs matplotlib: pip install "tfgc[{extra}]"') from error
    return matplotlib


def draw(title: str, lines: Mapping[str, Points], x: str, unit: str = "", levels: Mapping[str, float] = {}) -> Any:
    """Draw a line for each of `lines` by its name, and a level for each of `levels`, in bytes; return the axes.

    Args:
        title: It stands above.
        lines: Points (place in the step, bytes) by name.
        x: What the places are.
        unit: The unit of places; it gets a prefix.
        levels: Bytes by name.
    """
    require("a plot", "plot")
    from matplotlib import pyplot

    if not any(lines.values()):
        raise TfgcError("there is no timeline to plot")
    _, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    most = max([1, *levels.values(), *(count for points in lines.values() for _, count in points)])
    size, prefix = _scale(most)
    width, of_width = _scale(max(place for points in lines.values() for place, _ in points)) if unit else (1, "")
    for (name, points), style in zip(lines.items(), ("-", "--")):
        places, counts = zip(*points)
        how = "steps-post" if unit else "default"  # what is measured or simulated holds until the next point
        axes.plot([p / width for p in places], [c / size for c in counts], style, label=name, drawstyle=how)
    for (name, count), style in zip(levels.items(), (":", "-.")):
        axes.axhline(count / size, color="gray", linestyle=style, label=name)
    title = "\n".join(textwrap.fill(line, 80) for line in title.split("\n"))
    axes.set_title(title, fontsize="medium", parse_math=False)
    axes.set(xlabel=f"{x} ({of_width}{unit})" if unit else x, ylabel=f"memory ({prefix}B)")
    axes.set_xlim(left=0)
    axes.set_ylim(0, 1.05 * most / size)
    axes.grid(alpha=0.3)
    axes.figure.legend(loc="outside lower left", ncols=2, frameon=False)
    return axes


def of_plan(plan: Segmentation) -> Any:
    """Draw what a plan stores over the step, and what plain training does."""
    if plan.outlook is None or any(s.stored_bytes is None or s.inside_bytes is None for s in plan.segments):
        raise TfgcError("there is nothing to plot: sizes are unknown, plan with batch_size, input_shapes or example")
    plain = [Segment(s.nodes, "keep", stored_bytes=s.inside_bytes) for s in plan.segments]
    lines = {"activations stored by the plan": _course(plan.segments), "by plain training": _course(plain)}
    levels = {"the plan's peak, with gradients": plan.outlook.peak_bytes}
    return draw(f"Plan {summary(plan)[0]}", lines, "place in the step (nodes, forward then backward)", levels=levels)


def _course(segments: Sequence[Segment]) -> list[tuple[float, float]]:
    """Stored bytes over the nodes of a forward pass by segments, and of the backward pass with its replays."""
    place, stored, points = 0.0, 0.0, [(0.0, 0.0)]
    for segment in segments:
        place, stored = place + len(segment.nodes), stored + (segment.stored_bytes or 0)
        points.append((place, stored))
    for segment in reversed(segments):
        if segment.mode == "recompute":
            whole = (Segment(segment.nodes, "keep", stored_bytes=segment.inside_bytes),)
            replay = _course(whole if segment.inner is None else segment.inner.segments)
            points += [(place + x / 2, stored + count) for x, count in replay[1:-1]]
        place, stored = place + len(segment.nodes), stored - (segment.stored_bytes or 0)
        points.append((place, stored))
    return points


def _scale(most: float) -> tuple[float, str]:
    """The prefix of the unit of an axis that reaches `most`, behind how much it stands for."""
    return next(((size, prefix) for size, prefix in _STEPS if most >= size), _STEPS[-1])
