"""The plots of a report: memory over time, Pareto fronts, predicted against measured peaks. No TensorFlow."""

import itertools
from collections.abc import Sequence
from typing import Any

from tfgc._records.front import FrontPoint
from tfgc._records.measurement import Study
from tfgc._records.predicted import SegmentSummary
from tfgc._report import study_summary, study_tables
from tfgc._report.svg import CARD, INK, LINE, MARKERS, MUTED, SERIES, Plot, legend, legend_height, short, unit_of
from tfgc._units import format_bytes, format_percent

_INSIDE = "inside, if kept whole"
# By the mode of plain training: how long are the dashes and what is between them.
_DASHES = {"eager": (0, (6, 2)), "graph": (0, (2, 1.5)), "xla": (0, (6, 2, 1, 2))}


def of_study(study: Study) -> list[Plot]:
    """All plots that the results of one study allow."""
    drawn = [
        memory(study),
        front(study),
        *(plan(study_summary.heading(study), name, parts) for name, parts in study_tables.plans(study)),
    ]
    return [plot for plot in drawn if plot is not None]


def memory(study: Study) -> Plot | None:
    """Allocated bytes over one step, a line a case."""
    records = [r for r in study.records if r.timeline]
    recomputed = [r for r in records if r.case != "plain"]
    if not records:
        return None
    lines = [[(second, (r.resident_bytes or 0) + count) for second, count in r.timeline] for r in records]
    size, unit = unit_of(max(count for line in lines for _, count in line))
    names = [short(r.name) for r in records]
    failed = [f"{short(r.name)}: {r.status}" for r in study.records if r.status in ("oom", "failed")]

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        for record, line, label in zip(records, lines, names):
            times, counts = zip(*line)
            style: dict[str, Any]
            if record.case == "plain":
                style = {"color": INK if record.mode == "graph" else MUTED, "zorder": 3}
                style["linestyle"] = _DASHES.get(record.mode, _DASHES["eager"])
            else:
                i = recomputed.index(record)
                step = max(1, len(times) // 5)
                every = (i * step // 8 % step, step)  # so that markers of different lines do not overlap
                style = {"color": SERIES[i % len(SERIES)], "marker": MARKERS[i % len(MARKERS)], "markevery": every}
                style |= {"linestyle": "-" if i < len(SERIES) else "-.", "linewidth": 1.4 if len(records) < 5 else 1}
            axes.plot(times, [count / size for count in counts], label=label, **style)
        axes.set(xlabel="time in one training step (s)", ylabel=f"allocated ({unit})")
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        for label in failed:
            axes.plot([], [], " ", label=label)
        legend(figure, [*names, *failed])

    most = (format_bytes(max(count for _, count in line)) for line in lines)
    peaks = ", ".join(f"{r.name} {peak}" for r, peak in zip(records, most))
    words = f"A line a case, in {unit} over seconds; plain cases are dashed. The highest points: {peaks}."
    return Plot(
        study_summary.heading(study), "Memory over one step", words, draw, 2.2 + legend_height([*names, *failed])
    )


def front(study: Study) -> Plot | None:
    """Overhead over peak."""
    found = study.front
    if found is None or not found.points:
        return None
    bought = [(choice.budget, choice.point) for choice in found.choices if choice.point is not None]
    missed = [choice.budget for choice in found.choices if choice.point is None]
    points = [*found.points, *found.others, *(point for _, point in bought)]
    size, unit = unit_of(max(point.peak_bytes for point in points))
    work = "time" if found.unit == "s" else "flops"
    names = ["least for each peak", *(f"budget {short(budget, 14)}" for budget, _ in bought)]
    names += [f"budget {short(budget, 14)}: infeasible" for budget in missed] + [f"floor: {short(found.floor_node)}"]

    def draw(figure: Any) -> None:
        axes = figure.subplots()

        def at(point: FrontPoint) -> tuple[float, float]:
            return point.peak_bytes / size, point.overhead * 100

        axes.plot(*zip(*map(at, found.points)), "o-", color=SERIES[0], label=names[0])
        for point in found.others:
            axes.plot(*at(point), "s", color=MUTED)
        for point in (found.points[0], found.points[-1], *found.others):
            box = {"facecolor": CARD, "edgecolor": "none", "pad": 0.5}
            style = {"ha": "center", "fontsize": 8, "color": INK, "bbox": box}
            axes.annotate(short(point.name, 16), at(point), (0, 6), textcoords="offset points", **style)
        for i, (_, point) in enumerate(bought):
            style = {"color": SERIES[1 + i % (len(SERIES) - 1)], "markersize": 9, "zorder": 4}
            axes.plot(*at(point), "*Pdv^X"[i % 6], label=names[1 + i], **style)
        for i, _ in enumerate(missed, start=1 + len(bought)):
            axes.plot([], [], " ", label=names[i])
        axes.axvline(found.floor_bytes / size, color=INK, linestyle="--", linewidth=1, label=names[-1])
        axes.set(xlabel=f"peak of the whole step, weights included ({unit})", ylabel=f"overhead (% of {work})")
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=min(0, axes.get_ylim()[0]))
        axes.set_ylim(top=axes.get_ylim()[1] + 0.08 * (axes.get_ylim()[1] - axes.get_ylim()[0]))
        legend(figure, names)

    words = "; ".join(f"{format_bytes(point.peak_bytes)} at {format_percent(point.overhead)}" for point in found.points)
    chosen = "".join(
        f" Budget {budget} buys {format_bytes(point.peak_bytes)} at {format_percent(point.overhead)}."
        for budget, point in bought
    )
    words = f"Peak and overhead in % of plain {work}: {words}.{chosen} Floor: {format_bytes(found.floor_bytes)}."
    return Plot(study_summary.heading(study), "Least overhead for each peak", words, draw, 2.2 + legend_height(names))


def predicted(studies: Sequence[Study]) -> Plot | None:
    """What is predicted to be needed against what is, over all studies; None if there are none."""
    names = ["within 10 %", "equal"]
    known: list[tuple[str, list[tuple[int, int]]]] = []
    for study in studies:
        pairs = [(r.predicted_needs, r.needed_bytes) for r in study.records if r.predicted_needs and r.needed_bytes]
        known += [(study_summary.heading(study), pairs)] if pairs else []
    if not known:
        return None
    most = max(max(pair) for _, pairs in known for pair in pairs)
    size, unit = unit_of(most)
    names += [short(name) for name, _ in known]

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        end = most / size * 1.08
        axes.fill_between([0, end], [0, 0.9 * end], [0, 1.1 * end], color=LINE, linewidth=0, label=names[0])
        axes.plot([0, end], [0, end], "--", color=MUTED, linewidth=1, label=names[1])
        for i, (_, pairs) in enumerate(known):
            style = {"color": SERIES[i % len(SERIES)], "marker": MARKERS[i % len(MARKERS)], "linestyle": ""}
            axes.plot(*zip(*((guess / size, peak / size) for guess, peak in pairs)), label=names[i + 2], **style)
        axes.set(xlabel=f"predicted to need ({unit})", ylabel=f"needs ({unit})", xlim=(0, end), ylim=(0, end))
        legend(figure, names)

    off = [abs(guess / peak - 1) for _, pairs in known for guess, peak in pairs]
    mean, worst = map(format_percent, (sum(off) / len(off), max(off)))
    words = f"Of {len(off)} cases the prediction is off by {mean} on average and by {worst} at most."
    return Plot("", "Predicted against measured", words, draw, 2.6 + legend_height(names))


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
