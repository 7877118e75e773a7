"""What a report draws: memory over time, fronts, plans, predicted against measured peaks. No TensorFlow."""

from tfgc._report import study_tables
from tfgc._report.svg import CARD, INK, LINE, MARKERS, MUTED, SERIES, Picture
from tfgc._units import format_bytes

_STEPS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "bytes"))


def of_study(study):
    """All pictures of one study that there is something for."""
    of = study_tables.heading(study)
    drawn = [
        memory(study),
        closer(study),
        front(study),
        *(plan(of, name, parts) for name, parts in study_tables.plans(study)),
    ]
    return [picture for picture in drawn if picture is not None]


def memory(study):
    """Allocated bytes over one step, a line a case."""
    return _memory(study, study.records, "Memory over one step, above weights")


def closer(study):
    """The same for recomputed cases alone, where plain ones leave them little room."""
    most = {}
    for record in study.records:
        top = max((count for _, count in record.timeline), default=0)
        most[record.case == "plain"] = max(top, most.get(record.case == "plain", 0))
    if most.get(False, 0) == 0 or most[False] > 0.4 * most.get(True, 0):
        return None
    recomputed = [r for r in study.records if r.case != "plain"]
    return _memory(study, recomputed, "Memory over one step, recomputed cases alone")


def _memory(study, records, title):
    recomputed = [r for r in records if r.case != "plain"]
    records = [r for r in records if r.timeline]
    if not records:
        return None
    size, unit = _unit(max(count for r in records for _, count in r.timeline))
    names = [_short(r.name) for r in records]

    def draw(figure):
        axes = figure.subplots()
        for record, label in zip(records, names):
            times, counts = zip(*record.timeline)
            if record.case == "plain":
                style = {"color": INK if record.mode == "graph" else MUTED, "zorder": 3}
                style["linestyle"] = (0, (2, 1.5)) if record.mode == "graph" else (0, (6, 2))
            else:
                i = recomputed.index(record)
                step = max(1, len(times) // 5)
                every = (i * step // 8 % step, step)  # marks of different lines do not meet
                style = {"color": SERIES[i % len(SERIES)], "marker": MARKERS[i % len(MARKERS)], "markevery": every}
                style |= {"linestyle": "-" if i < len(SERIES) else "-.", "linewidth": 1.4 if len(records) < 5 else 1}
            axes.plot(times, [count / size for count in counts], label=label, **style)
        axes.set(xlabel="time in one training step (s)", ylabel=f"allocated ({unit})")
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        _legend(figure, names)

    peaks = ", ".join(f"{r.name} {format_bytes(max(count for _, count in r.timeline))}" for r in records)
    told = f"A line a case, in {unit} over seconds; plain cases are dashed. The highest points: {peaks}."
    return Picture(study_tables.heading(study), title, told, draw, 2.2 + _height(names))


def front(study):
    """Overhead over peak."""
    found = study.front
    if found is None or not found.points:
        return None
    bought = [choice for choice in found.choices if choice.point is not None]
    missed = [choice for choice in found.choices if choice.point is None]
    points = [*found.points, *found.others, *(choice.point for choice in bought)]
    size, unit = _unit(max(point.peak_bytes for point in points))
    work = "time" if found.unit == "s" else "flops"
    names = ["least for each peak", *(f"budget {_short(c.budget, 14)}" for c in bought)]
    names += [f"budget {_short(c.budget, 14)}: infeasible" for c in missed] + [f"floor: {_short(found.floor_node)}"]

    def draw(figure):
        axes = figure.subplots()
        at = lambda point: (point.peak_bytes / size, point.overhead * 100)
        axes.plot(*zip(*map(at, found.points)), "o-", color=SERIES[0], label=names[0])
        for point in found.others:
            axes.plot(*at(point), "s", color=MUTED)
        for point in (found.points[0], found.points[-1], *found.others):
            box = {"facecolor": CARD, "edgecolor": "none", "pad": 0.5}
            style = {"ha": "center", "fontsize": 8, "color": INK, "bbox": box}
            axes.annotate(_short(point.name, 16), at(point), (0, 6), textcoords="offset points", **style)
        for i, choice in enumerate(bought):
            style = {"color": SERIES[1 + i % (len(SERIES) - 1)], "markersize": 9, "zorder": 4}
            axes.plot(*at(choice.point), "*Pdv^X"[i % 6], label=names[1 + i], **style)
        for i, _ in enumerate(missed, start=1 + len(bought)):
            axes.plot([], [], " ", label=names[i])
        axes.axvline(found.floor_bytes / size, color=INK, linestyle="--", linewidth=1, label=names[-1])
        axes.set(xlabel=f"peak of the whole step, weights included ({unit})", ylabel=f"overhead (% of {work})")
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=min(0, axes.get_ylim()[0]))
        axes.set_ylim(top=axes.get_ylim()[1] + 0.08 * (axes.get_ylim()[1] - axes.get_ylim()[0]))
        _legend(figure, names)

    told = "; ".join(f"{format_bytes(point.peak_bytes)} at {point.overhead * 100:.1f} %" for point in found.points)
    chosen = "".join(
        f" Budget {c.budget} buys {format_bytes(c.point.peak_bytes)} at {c.point.overhead * 100:.1f} %." for c in bought
    )
    told = f"Peak and overhead in % of plain {work}: {told}.{chosen} Floor: {format_bytes(found.floor_bytes)}."
    return Picture(study_tables.heading(study), "Least overhead for each peak", told, draw, 2.2 + _height(names))


def plan(of, name, parts):
    """A plan along the network: its segments, what is stored, bytes."""
    total = sum(part.nodes for part in parts) or 1
    depth = max(map(_depth, parts))
    known = [part for part in parts if part.stored_bytes is not None or part.inside_bytes is not None]
    size, unit = _unit(max((max(p.stored_bytes or 0, p.inside_bytes or 0) for p in known), default=0))

    def draw(figure):
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
            if part.stored_bytes is not None and part.nodes / total > 0.15:
                style = {"ha": "center", "va": "bottom", "fontsize": 7.5, "color": INK}
                bars.text(start + part.nodes / 2, part.stored_bytes / size, format_bytes(part.stored_bytes), **style)
            start += part.nodes
        if known:
            bars.margins(y=0.12)
            band.tick_params(bottom=False)
            bars.set_ylabel(f"bytes ({unit})")
        ends = f"{_short(parts[0].first, 18)} ... {_short(parts[-1].last, 18)}"
        bars.set_xlabel(f"place along the network (nodes)\n{ends}")
        _key(figure, bool(known), {part.mode for part in parts})

    stored = [part.stored_bytes for part in parts if part.stored_bytes is not None]
    kept = sum(part.mode == "keep" for part in parts)
    told = f"{len(parts)} segments over {total} nodes, {kept} kept and {len(parts) - kept} recomputed"
    told += f"; {format_bytes(sum(stored))} stored in all." if stored else "."
    return Picture(of, f"Plan of {name}", told, draw, (2.4 if known else 1.2) + 0.22 * depth)


def _draw_band(axes, parts, start, total, row):
    """A block a segment; the parts of a replay stand in the row below it, as wide as they are."""
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


def _key(figure, known, modes):
    from matplotlib.patches import Patch

    handles = []
    if "keep" in modes:
        handles.append(Patch(facecolor=SERIES[0], label="kept" + ", stored" * known))
    if modes - {"keep"}:
        handles.append(Patch(facecolor=CARD, edgecolor=SERIES[1], hatch="////", label="recomputed"))
    if known and modes - {"keep"}:
        handles.append(Patch(facecolor=SERIES[1], label="recomputed, stored"))
    if known:
        handles.append(Patch(facecolor="none", edgecolor=MUTED, label="inside, if kept whole"))
    figure.legend(handles=handles, loc="outside lower left", ncols=2)


def foreseen(studies):
    """Predicted against measured peaks, over all studies; None if there are none."""
    known, names = [], ["within 10 %", "equal"]
    for study in studies:
        pairs = [(r.predicted.peak_bytes, r.peak_bytes) for r in study.records if r.predicted and r.peak_bytes]
        known += [(study_tables.heading(study), pairs)] if pairs else []
    if not known:
        return None
    most = max(max(pair) for _, pairs in known for pair in pairs)
    size, unit = _unit(most)
    names += [_short(name) for name, _ in known]

    def draw(figure):
        axes = figure.subplots()
        end = most / size * 1.08
        axes.fill_between([0, end], [0, 0.9 * end], [0, 1.1 * end], color=LINE, linewidth=0, label=names[0])
        axes.plot([0, end], [0, end], "--", color=MUTED, linewidth=1, label=names[1])
        for i, (_, pairs) in enumerate(known):
            style = {"color": SERIES[i % len(SERIES)], "marker": MARKERS[i % len(MARKERS)], "linestyle": ""}
            axes.plot(*zip(*((guess / size, peak / size) for guess, peak in pairs)), label=names[i + 2], **style)
        axes.set(xlabel=f"predicted peak ({unit})", ylabel=f"measured peak ({unit})", xlim=(0, end), ylim=(0, end))
        _legend(figure, names)

    off = [abs(guess / peak - 1) for _, pairs in known for guess, peak in pairs]
    mean, worst = (f"{share * 100:.1f} %" for share in (sum(off) / len(off), max(off)))
    told = f"Of {len(off)} cases the prediction is off by {mean} on average and by {worst} at most."
    return Picture("", "Predicted against measured peaks", told, draw, 2.6 + _height(names))


def _legend(figure, names):
    figure.legend(loc="outside lower left", ncols=_columns(names), handlelength=2.2, columnspacing=1)


def _columns(names):
    """Two where they fit."""
    return 2 if max(map(len, names)) <= 20 else 1


def _height(names):
    """Inches of a legend."""
    return 0.17 * -(-len(names) // _columns(names))


def _short(text, most=20):
    """The text, its middle left out where it would not fit."""
    return text if len(text) <= most else f"{text[: most // 2 - 1]}…{text[-(most // 2 - 1) :]}"


def _unit(count):
    return next(((size, name) for size, name in _STEPS if count >= size), _STEPS[-1])


def _depth(part):
    return 1 + max(map(_depth, part.inner), default=0)
