"""The table of the measured cases of a network, and how commands print tables. No TensorFlow."""

import io
import shutil
from collections.abc import Sequence
from typing import Any, TextIO

import rich.console

from tfgc._records.measurement import Measurement
from tfgc._records.table import TextTable
from tfgc._report import pace
from tfgc._units import format_bytes, format_percent

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


def rows(records: Sequence[Measurement]) -> list[list[str]]:
    """The cells of the comparison table, as text: a list of rows."""
    named = {record.name: record for record in records}
    plain = [named.get(name) for name in baselines(records)]
    table = []
    for record in records:
        if record.status != "ok":
            table.append([record.name, record.status, *[""] * (2 + 2 * len(plain))])
            continue
        saved = ["baseline" if record is one else format_percent(record.saved(one)) for one in plain]
        overheads = ["baseline" if record is one else pace.overhead(record, one) for one in plain]
        needs, resident = (
            "" if count is None else format_bytes(count) for count in (record.needed_bytes, record.process_peak_bytes)
        )
        table.append([record.name, needs, *saved, resident, pace.seconds(record), *overheads])
    return table


def comparison(records: Sequence[Measurement]) -> TextTable:
    """The table of memory and time for a terminal, a row a case."""
    title = f"{records[0].network}, batch {records[0].batch_size}"
    modes = [name.removeprefix("plain-") for name in baselines(records)]
    saved, overheads = ([f"{what} {mode}" for mode in modes] for what in ("saved", "overhead"))
    heads = ("case", "needs", *saved, "process", "step", *overheads)
    return TextTable(title, heads, rows(records), _legend(records))


def text(table: Any) -> str:
    """A table as text, as wide as the terminal; 140 columns where there is none."""
    file = io.StringIO()
    width = shutil.get_terminal_size((140, 24)).columns
    rich.console.Console(file=file, width=width).print(table)
    return file.getvalue().rstrip()


def print_table(table: Any, file: TextIO | None = None) -> None:
    """Print a table; to anything but a terminal, 140 columns wide."""
    console = rich.console.Console(file=file)
    if not console.is_terminal:
        console = rich.console.Console(file=file, width=140)
    console.print(table)


def _legend(records: Sequence[Measurement]) -> str:
    device = next((r.device for r in records if r.device), "device")
    against = " and ".join(f"{name} ({BASELINES[name]})" for name in baselines(records))
    failed = "".join(f"\n{r.name}: {r.status}, {r.detail}." for r in records if r.status != "ok")
    return (
        f"needs: what the {device} allocator holds at most in a step, weights, optimizer and data included; the median "
        f"over the steps. saved: the part of what {against} needs. process: largest resident "
        f"set of the process (memory_profiler). step: {pace.timing(records)} "
        f"overhead: the extra time of a step, against the same baseline.{failed}"
    )
