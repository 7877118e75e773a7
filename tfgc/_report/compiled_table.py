"""Render what compiled steps need as a table, and the buffers that they hold at their peak. No TensorFlow."""

from collections.abc import Mapping

from tfgc._records.compiled_memory import CompiledMemory
from tfgc._records.table import TextTable
from tfgc._units import format_bytes, format_percent

_NOTE = (
    "needs: the whole step. temporaries: activations, gradients and workspaces. XLA's own assignment of buffers, "
    "compiled without a GPU and not run: what CUDA and cuDNN take, and workspaces that autotuning would choose, come "
    "on top."
)


def steps(network: str, batch_size: int, found: Mapping[str, CompiledMemory]) -> TextTable:
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
    return TextTable(title, heads, rows, f"{_NOTE} Compiled by {plain.compiler}.")


def buffers(name: str, memory: CompiledMemory) -> TextTable:
    """The largest buffers that a step holds at its peak."""
    rows = [(format_bytes(buffer.bytes), buffer.layer, buffer.operation) for buffer in memory.largest]
    return TextTable(f"{name}: the largest buffers at the peak", ("size", "layer", "operation"), rows)
