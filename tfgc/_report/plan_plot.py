"""The plot of a plan along its network. No TensorFlow."""

from collections.abc import Sequence
from typing import Any

from tfgc._records.predicted import SegmentSummary
from tfgc._report.svg import CARD, INK, MUTED, SERIES, Plot, short, unit_of
from tfgc._units import format_bytes


def plan(of: str, name: str, parts: Sequence[SegmentSummary]) -> Plot:
    """A plan along the network: its segments, what is stored, bytes."""
    total = sum(part.nodes for part in parts) or 1
    depth = max(map(_depth, parts))
    known = [part for part in parts if part.stored_bytes is not None or part.inside_bytes is not None]
    size, unit = unit_of(
        max((max((p.stored_bytes or 0) + p.host_bytes, p.inside_bytes or 0) for p in known), default=0)
    )

    def draw(figure: Any) -> None:
        if known:
            band, bars = figure.subplots(2, 1, sharex=True, height_ratios=[0.22 * depth + 0.2, 1.4])
        else:
            band = bars = figure.subplots()
        _draw_band(band, parts, 0, total, 0)
        band.set(ylim=(-depth, 0.02), yticks=[], xlim=(0, total))
        band.grid(False)
        band.spines[:].set_visible(False)
        start = 0
        for part in parts if known else ():
            box = {"x": start, "width": part.nodes, "align": "edge"}
            bars.bar(height=(part.inside_bytes or 0) / size, fill=False, edgecolor=MUTED, linewidth=0.9, **box)
            colour = SERIES[0] if part.mode == "keep" else SERIES[1]
            bars.bar(height=(part.stored_bytes or 0) / size, color=colour, edgecolor=CARD, linewidth=0.4, **box)
            if part.host_bytes:
                shown = {"color": CARD, "edgecolor": SERIES[1], "hatch": "....", "linewidth": 0.4}
                bars.bar(height=part.host_bytes / size, bottom=(part.stored_bytes or 0) / size, **shown, **box)
            if part.stored_bytes is not None and part.nodes / total > 0.15:
                style = {"ha": "center", "va": "bottom", "fontsize": 7.5, "color": INK}
                bars.text(start + part.nodes / 2, part.stored_bytes / size, format_bytes(part.stored_bytes), **style)
            start += part.nodes
        if known:
            bars.margins(y=0.12)
            band.tick_params(bottom=False)
            bars.set_ylabel(f"bytes ({unit})")
        ends = f"{short(parts[0].first, 18)} ... {short(parts[-1].last, 18)}"
        bars.set_xlabel(f"place along the network (nodes)\n{ends}")
        _key(figure, bool(known), {part.mode for part in parts}, any(part.host_bytes for part in parts))

    stored = [part.stored_bytes for part in parts if part.stored_bytes is not None]
    kept = sum(part.mode == "keep" for part in parts)
    words = f"{len(parts)} segments over {total} nodes, {kept} kept and {len(parts) - kept} recomputed"
    words += f"; {format_bytes(sum(stored))} stored in all." if stored else "."
    on_host = sum(part.host_bytes for part in parts)
    words = words.removesuffix(".") + f"; {format_bytes(on_host)} wait on the host." if on_host else words
    return Plot(of, f"Plan of {name}", words, draw, (2.4 if known else 1.2) + 0.22 * depth)


def _draw_band(axes: Any, parts: Sequence[SegmentSummary], start: int, total: int, row: int) -> None:
    """A block a segment; the segments of its replay are in the row below, to scale."""
    for number, part in enumerate(parts, start=1):
        kept = part.mode == "keep"
        look = {"facecolor": SERIES[0] if kept else CARD, "edgecolor": CARD if kept else SERIES[1]}
        axes.barh(-row - 0.48, part.nodes, 0.8, left=start, hatch=None if kept else "////", linewidth=0.8, **look)
        if not kept:
            axes.barh(-row - 0.48, part.nodes, 0.8, left=start, fill=False, edgecolor=SERIES[1], linewidth=0.8)
        if part.nodes / total > 0.045:
            box = None if kept else {"facecolor": CARD, "edgecolor": "none", "pad": 0.8}
            style = {"color": CARD if kept else INK, "fontsize": 7.5, "bbox": box}
            axes.text(start + part.nodes / 2, -row - 0.5, str(number), ha="center", va="center", **style)
        if part.inner:
            _draw_band(axes, part.inner, start, total, row + 1)
        start += part.nodes


def _key(figure: Any, known: bool, modes: set[str], on_host: bool) -> None:
    from matplotlib.patches import Patch

    handles = []
    if "keep" in modes:
        handles.append(Patch(facecolor=SERIES[0], label="kept" + ", stored" * known))
    if modes - {"keep"}:
        handles.append(Patch(facecolor=CARD, edgecolor=SERIES[1], hatch="////", label="recomputed"))
    if known and modes - {"keep"}:
        handles.append(Patch(facecolor=SERIES[1], label="recomputed, stored"))
    if on_host:
        handles.append(Patch(facecolor=CARD, edgecolor=SERIES[1], hatch="....", label="recomputed, on the host"))
    if known:
        handles.append(Patch(facecolor="none", edgecolor=MUTED, label="inside, if kept whole"))
    figure.legend(handles=handles, loc="outside lower left", ncols=2)


def _depth(part: SegmentSummary) -> int:
    return 1 + max(map(_depth, part.inner), default=0)
