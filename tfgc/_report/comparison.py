"""Render measurements: tables for a terminal or Markdown, and a picture. No TensorFlow."""

import io
import math

import rich.console

from tfgc import _files, _units
from tfgc._errors import TfgcError
from tfgc._records.measurement import Measurement
from tfgc._records.table import TextTable

HEADS = (
    "case", "peak", "cut-off eager", "cut-off graph", "process", "step", "overhead eager", "overhead graph",
)  # fmt: skip


def rows(records):
    """The cells of the comparison table, as text: a list of rows."""
    eager, graph = (_named(records, name) for name in ("plain-eager", "plain-graph"))
    table = []
    for record in records:
        if record.status != "ok":
            table.append([record.name, record.status, *[""] * 6])
            continue
        cells = [record.name, _told(_units.format_bytes, record.peak_bytes)]
        cut_offs, overheads = zip(*(_ratios(record, baseline) for baseline in (eager, graph)))
        resident = _told(_units.format_bytes, record.process_peak_bytes)
        cells += [*cut_offs, resident, _told(_units.format_seconds, record.step_seconds), *overheads]
        table.append(cells)
    return table


def _told(form, value):
    return "" if value is None else form(value)


def comparison(records):
    """The table of memory and time for a terminal, a row a case."""
    return TextTable(_title(records), HEADS, rows(records), _legend(records))


def losses(records):
    """The table of the loss of each step for a terminal, a column a case."""
    ran = [r for r in records if r.losses]
    steps = range(max((len(r.losses) for r in ran), default=0))
    cells = [[str(i), *(f"{r.losses[i]:.7g}" if i < len(r.losses) else "" for r in ran)] for i in steps]
    title = "Loss of each step: the same weights and data in every case"
    return TextTable(title, ("step", *(r.name for r in ran)), cells, _agreement(ran))


def _agreement(records):
    """How far the losses of the recomputed cases are from those of their plain cases."""
    plain = {r.name: _named(records, r.baseline) for r in records}
    worst = max((apart(r.losses, plain[r.name].losses) for r in records if plain[r.name]), default=0.0)
    return f"Largest relative difference to the plain step in the same kind of loop: {worst:.2g}"


def apart(losses, expected):
    """The largest relative difference of two sequences of losses."""
    pairs = [(a, b) for a, b in zip(losses, expected) if not (math.isnan(a) and math.isnan(b))]
    if any(not (math.isfinite(a) and math.isfinite(b)) and a != b for a, b in pairs):
        return math.inf
    return max((abs(a - b) / max(abs(b), 1e-30) for a, b in pairs if a != b), default=0.0)


def markdown(records):
    """The comparison table in Markdown."""
    lines = [_title(records), "", "| " + " | ".join(HEADS) + " |", "| --- " + "| ---: " * (len(HEADS) - 1) + "|"]
    lines += ["| " + " | ".join(cell or "-" for cell in row) + " |" for row in rows(records)]
    return "\n".join([*lines, "", _legend(records)])


def plot(records, path):
    """Draw allocated memory over one step, a line a case, into a PNG file.

    Raises:
        TfgcError: If matplotlib is not installed or `path` cannot be written.
    """
    matplotlib = require_matplotlib()
    drawn = [r for r in records if r.timeline]
    figure = matplotlib.figure.Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    for record in drawn:
        style = "--" if record.case == "plain" else "-"
        times, counts = zip(*record.timeline)
        axes.plot(times, [c / 1e6 for c in counts], style, label=record.name, linewidth=1.2)
    for record in records:
        if record.status != "ok":
            axes.plot([], [], " ", label=f"{record.name}: {record.status}")
    axes.set(xlabel="time in one training step (s)", ylabel="allocated above weights (MB)", title=_title(records))
    axes.set_xlim(left=0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    save(figure, path)


def save(figure, path):
    """Write a matplotlib figure into a PNG file, or say why it cannot be."""
    picture = io.BytesIO()
    figure.savefig(picture, dpi=120, format="png")
    _files.write(path, picture.getvalue())


def require_matplotlib(what="a plot", extra="plot"):
    """Import matplotlib, or say how to install it."""
    try:
        import matplotlib.figure
    except ImportError as error:
        raise TfgcError(f'{what} needs matplotlib: pip install "tfgc[{extra}]"') from error
    return matplotlib


def print_table(table, file=None):
    """Print a table, as wide as it must be where the output is no terminal."""
    console = rich.console.Console(file=file)
    if not console.is_terminal:
        console = rich.console.Console(file=file, width=140)
    console.print(table)


def _named(records, name):
    return next((r for r in records if r.name == name), None)


def _ratios(record: Measurement, baseline):
    """Cut-off and overhead as text."""
    if record is baseline:
        return "baseline", "baseline"
    cut_off, overhead = record.against(baseline)
    return (
        "" if cut_off is None else f"{cut_off * 100:.1f} %",
        "" if overhead is None else f"{overhead * 100:+.0f} %",
    )


def _title(records):
    first = records[0]
    return f"{first.network}, batch {first.batch_size}"


def _legend(records):
    device = next((r.device for r in records if r.device), "device")
    failed = "".join(f"\n{r.name}: {r.status}, {r.detail}." for r in records if r.status != "ok")
    return (
        f"peak: median over the steps of what the {device} allocator holds above weights, optimizer and data. "
        "cut-off: the part of it that is saved, against plain-eager (GradientTape) and plain-graph (the step in "
        "tf.function). process: largest resident set of the process (memory_profiler). step: median seconds. "
        f"overhead: what the step takes longer than that baseline's.{failed}"
    )
