"""The tables that commands print: measured cases of a network, the largest batch, compiled steps. No TensorFlow."""

import io
import shutil
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

import rich.console

from tfgc._records.batch_limit import MaxBatch, Reach, batch_text
from tfgc._records.compiled_memory import CompiledMemory
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
_NOTE_ON_COMPILED = (
    "needs: the whole step. temporaries: activations, gradients and workspaces. XLA's own assignment of buffers, "
    "compiled without a GPU and not run: what CUDA and cuDNN take, and workspaces that autotuning would choose, come "
    "on top."
)


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


def max_batch(result: MaxBatch) -> TextTable:
    """The table of a `MaxBatch`: a row for plain training and one for the strategy."""
    heads = ("way", "predicted", "needs", "measured", "takes", "does not fit", "times plain")
    title = f"{result.network}: the largest batch in {format_bytes(result.budget_bytes)}"
    return TextTable(title, heads, [_reach(result, reach) for reach in result.reaches], _legend_of_max_batch(result))


def _reach(result: MaxBatch, reach: Reach) -> tuple[str, ...]:
    measured = reach.measured_bytes
    return (
        reach.case,
        batch_text(reach.predicted_batch_size),
        format_bytes(reach.predicted_bytes),
        batch_text(reach.batch_size) if reach.records else "",
        "" if measured is None else format_bytes(measured),
        "" if reach.above is None else str(reach.above),
        f"{reach.batch_size / result.plain_batch_size:.2f}" if result.plain_batch_size else "",
    )


def _legend_of_max_batch(result: MaxBatch) -> str:
    words = (
        f"needs, takes: the whole step, {format_bytes(result.fixed_bytes)} of weights and optimizer slots and the "
        "batch itself included. does not fit: the least batch that was measured to need "
        "more."
    )
    loose = [reach.case for reach in result.reaches if reach.records and not reach.confirmed]
    if loose:
        words += f" Not found to the last sample, for want of runs: {', '.join(loose)}."
    if not result.records:
        words += " Predicted; nothing was run."
    return words


def compiled_steps(network: str, batch_size: int, found: Mapping[str, CompiledMemory]) -> TextTable:
    """The table of the steps of one network: a row for each, the first one plain."""
    plain = next(iter(found.values()))
    heads = ("step", "needs", "weights, slots, batch", "temporaries", "of plain", "fits", "compiled in")
    rows = [
        (
            name,
            format_bytes(memory.peak_bytes),
            format_bytes(memory.argument_bytes),
            format_bytes(memory.temp_bytes),
            format_percent(memory.temp_bytes / plain.temp_bytes),
            "yes" if memory.fits else "no",
            f"{memory.seconds:.0f} s",
        )
        for name, memory in found.items()
    ]
    title = f"{network}, batch {batch_size}: {plain.device}, {format_bytes(plain.device_bytes)}"
    return TextTable(title, heads, rows, f"{_NOTE_ON_COMPILED} Compiled by {plain.compiler}.")


def compiled_buffers(name: str, memory: CompiledMemory) -> TextTable:
    """The largest buffers that a step holds at its peak."""
    rows = [(format_bytes(buffer.bytes), buffer.layer, buffer.operation) for buffer in memory.largest]
    return TextTable(f"{name}: the largest buffers at the peak", ("size", "layer", "operation"), rows)
