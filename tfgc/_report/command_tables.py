"""The table of the measured cases of a network, and how commands print tables. No TensorFlow.

A difference in time within the spread of steps is called that.
"""

import io
import shutil
from collections.abc import Sequence
from typing import Any, TextIO

import rich.console

from tfgc._records.measurement import Measurement
from tfgc._records.table import TextTable
from tfgc._units import format_bytes, format_percent, format_seconds

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
        overheads = ["baseline" if record is one else overhead(record, one) for one in plain]
        needs, resident = (
            "" if count is None else format_bytes(count) for count in (record.needed_bytes, record.process_peak_bytes)
        )
        table.append([record.name, needs, *saved, resident, seconds(record), *overheads])
    return table


def seconds(record: Measurement) -> str:
    """The median time of a step, and how far its spread reaches to either side.

    >>> seconds(Measurement("net", "plain", "graph", 8, step_seconds=2.0, round_seconds=(1.9, 2.0, 2.1)))
    '2 s ± 5 %'
    """
    words, spread = "" if record.step_seconds is None else format_seconds(record.step_seconds), record.spread()
    if spread is None or not record.step_seconds:
        return words
    return f"{words} ± {format_percent((spread[1] - spread[0]) / 2 / record.step_seconds, '.0f')}"


def overhead(record: Measurement, baseline: Measurement | None) -> str:
    """The extra time against a baseline with its spread, or that it is within that.

    >>> plain = Measurement("net", "plain", "graph", 8, round_seconds=(1.0, 1.0, 1.0))
    >>> overhead(Measurement("net", "sqrt", "graph", 8, round_seconds=(1.1, 1.2, 1.3)), plain)
    '+20 % (+10 to +30)'
    >>> overhead(Measurement("net", "sqrt", "graph", 8, round_seconds=(0.9, 1.2, 1.3)), plain)
    'within the spread (-10 to +30 %)'
    """
    extra = record.against(baseline)[1]
    spread = record.spread(baseline) if baseline is not None else None
    if extra is None or spread is None:
        return format_percent(extra, "+.0f")
    low, high = (f"{100 * end:+.0f}" for end in spread)
    if spread[0] <= 0 <= spread[1]:
        return f"within the spread ({low} to {high} %)"
    return f"{format_percent(extra, '+.0f')} ({low} to {high})"


def timing(records: Sequence[Measurement]) -> str:
    """How steps were timed, in a sentence or two.

    >>> timing([Measurement("net", "plain", "graph", 8, step_seconds=1.0, round_seconds=(1.0,))])
    'median of 1 step, in which cases took turns: too few for a spread.'
    """
    timed = [record for record in records if record.step_seconds is not None]
    rounds = max((len(record.round_seconds) for record in timed), default=0)
    if not rounds:
        return "median seconds of cases that ran one after the other, so that a few % say nothing."
    words = f"median of {rounds} step{'s' * (rounds > 1)}, in which cases took turns"
    if rounds < 2:
        return f"{words}: too few for a spread."
    return (
        f"{words}, and the {'spread, which holds the true median 9 times in 10' if rounds > 4 else 'least and most'}."
    )


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
        f"set of the process (memory_profiler). step: {timing(records)} "
        f"overhead: the extra time of a step, against the same baseline.{failed}"
    )
