"""The plot of a plan along its network. No TensorFlow."""

import itertools
from collections.abc import Sequence
from typing import Any

from tfgc._records.predicted import SegmentSummary
from tfgc._report.svg import CARD, MUTED, SERIES, Plot, legend, legend_height, short, unit_of
from tfgc._units import format_bytes

_INSIDE = "inside, if kept whole"


def plan(of: str, name: str, parts: Sequence[SegmentSummary]) -> Plot | None:
    """What each segment of a plan stores, along the network; None where sizes are unknown."""
    if any(part.stored_bytes is None or part.inside_bytes is None for part in parts):
        return None
    places = [*itertools.accumulate((part.nodes for part in parts), initial=0)]
    size, unit = unit_of(max(max((p.stored_bytes or 0) + p.host_bytes, p.inside_bytes or 0) for p in parts))
    kinds: list[tuple[str, str, str, bool]] = [
        ("kept, stored", SERIES[0], "keep", False),
        ("recomputed, stored", SERIES[1], "recompute", False),
        ("recomputed, on the host", SERIES[1], "recompute", True),
    ]
    kinds = [kind for kind in kinds if any(part.mode == kind[2] and (part.host_bytes or not kind[3]) for part in parts)]
    names = [_INSIDE, *(kind[0] for kind in kinds)]

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        box = {"width": [part.nodes for part in parts], "align": "edge"}
        inside = [(part.inside_bytes or 0) / size for part in parts]
        axes.bar(places[:-1], inside, fill=False, edgecolor=MUTED, linewidth=0.9, label=_INSIDE, **box)
        for label, colour, mode, on_host in kinds:
            stored = [(part.stored_bytes or 0) / size * (part.mode == mode) for part in parts]
            if on_host:
                look = {"bottom": stored, "color": CARD, "edgecolor": colour, "hatch": "....", "linewidth": 0.4}
                axes.bar(places[:-1], [part.host_bytes / size for part in parts], label=label, **look, **box)
            else:
                axes.bar(places[:-1], stored, color=colour, edgecolor=CARD, linewidth=0.4, label=label, **box)
        ends = f"{short(parts[0].first, 18)} ... {short(parts[-1].last, 18)}"
        axes.set(xlabel=f"place along the network (nodes)\n{ends}", ylabel=f"bytes ({unit})", xlim=(0, places[-1] or 1))
        legend(figure, names)

    kept, on_host = sum(part.mode == "keep" for part in parts), sum(part.host_bytes for part in parts)
    words = f"{len(parts)} segments over {places[-1]} nodes, {kept} kept and {len(parts) - kept} recomputed; "
    words += f"{format_bytes(sum(part.stored_bytes or 0 for part in parts))} stored in all"
    words += f"; {format_bytes(on_host)} wait on the host." if on_host else "."
    return Plot(of, f"Plan of {name}", words, draw, 2 + legend_height(names))
