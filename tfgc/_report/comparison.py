"""Render the measurements of one network as tables. No TensorFlow."""

from collections.abc import Callable, Sequence
from typing import Any, TextIO

import rich.console

from tfgc import _units
from tfgc._records.measurement import Measurement
from tfgc._records.table import TextTable

# The plain cases, and what runs in them.
BASELINES = {
    "plain-eager": "GradientTape",
    "plain-graph": "the step in tf.function",
    "plain-xla": "the step compiled by XLA",
}


def baselines(records: Sequence[Measurement]) -> list[str]:
    """The names of the plain cases that some cases are to be compared with."""
    asked = {record.baseline for record in records}
    return [name for name in BASELINES if name in asked]


def heads(plain: Sequence[str], process: str = "process", relation: str = "") -> tuple[str, ...]:
    """The heads of the columns of `rows`.

    >>> heads(["plain-graph"], relation="against plain-")
    ('case', 'peak', 'cut-off against plain-graph', 'process', 'step', 'overhead against plain-graph')
    """
    modes = [relation + name.removeprefix("plain-") for name in plain]
    cut_offs, overheads = ([f"{what} {mode}" for mode in modes] for what in ("cut-off", "overhead"))
    return "case", "peak", *cut_offs, process, "step", *overheads


def rows(records: Sequence[Measurement]) -> list[list[str]]:
    """The cells of the comparison table, as text: a list of rows."""
    plain = [_named(records, name) for name in baselines(records)]
    table = []
    for record in records:
        if record.status != "ok":
            table.append([record.name, record.status, *[""] * (2 + 2 * len(plain))])
            continue
        cells = [record.name, _text(_units.format_bytes, record.peak_bytes)]
        ratios = [_ratios(record, baseline) for baseline in plain]
        cut_offs, overheads = zip(*ratios) if ratios else ((), ())
        resident = _text(_units.format_bytes, record.process_peak_bytes)
        cells += [*cut_offs, resident, _text(_units.format_seconds, record.step_seconds), *overheads]
        table.append(cells)
    return table


def _text(form: Callable[[Any], str], value: float | None) -> str:
    return "" if value is None else form(value)


def comparison(records: Sequence[Measurement]) -> TextTable:
    """The table of memory and time for a terminal, a row a case."""
    return TextTable(_title(records), heads(baselines(records)), rows(records), _legend(records))


def print_table(table: Any, file: TextIO | None = None) -> None:
    """Print a table; to anything but a terminal, 140 columns wide."""
    console = rich.console.Console(file=file)
    if not console.is_terminal:
        console = rich.console.Console(file=file, width=140)
    console.print(table)


def _named(records: Sequence[Measurement], name: str) -> Measurement | None:
    return next((r for r in records if r.name == name), None)


def _ratios(record: Measurement, baseline: Measurement | None) -> tuple[str, str]:
    """Cut-off and overhead as text."""
    if record is baseline:
        return "baseline", "baseline"
    cut_off, overhead = record.against(baseline)
    return _units.format_percent(cut_off), _units.format_percent(overhead, "+.0f")


def _title(records: Sequence[Measurement]) -> str:
    first = records[0]
    return f"{first.network}, batch {first.batch_size}"


def _legend(records: Sequence[Measurement]) -> str:
    device = next((r.device for r in records if r.device), "device")
    against = " and ".join(f"{name} ({BASELINES[name]})" for name in baselines(records))
    failed = "".join(f"\n{r.name}: {r.status}, {r.detail}." for r in records if r.status != "ok")
    return (
        f"peak: median over the steps of what the {device} allocator holds above weights, optimizer and data. "
        f"cut-off: the part of it that is saved, against {against}. process: largest resident "
        "set of the process (memory_profiler). step: median seconds. "
        f"overhead: the extra time of a step, against the same baseline.{failed}"
    )
