"""Which buffers a compiled step holds at its peak, read from what XLA writes of itself."""

import pathlib
import re
from collections.abc import Iterable

import keras

from tfgc._framework import keras_models
from tfgc._records.compiled_memory import CompiledBuffer

_COUNT = 8
_LIVE = re.compile(r"^\s*(?P<name>[\w.\-]+)\{[\d,]*\}: (?P<bytes>\d+) bytes")
_METADATA = re.compile(r"^\s*(?:ROOT )?%?(?P<name>[\w.\-]+) = .*?op_name=\"(?P<operation>[^\"]*)\"", re.MULTILINE)


def largest(dump: pathlib.Path, model: keras.Model) -> tuple[CompiledBuffer, ...]:
    """The largest temporaries at the peak, largest first, from the texts that XLA dumped."""
    live = _read(dump, "*-live-range.txt")
    peak = live.partition("(peak):")[2]
    operations = {m["name"]: m["operation"] for m in _METADATA.finditer(_read(dump, "*after_optimizations.txt"))}
    layers = {layer.name for layer in keras_models.layers_inside(model)[1:]}
    found = []
    for line in peak.splitlines():
        match = _LIVE.match(line)
        if match is not None and not match["name"].startswith("XLA_Args"):
            operation = operations.get(match["name"], match["name"])
            found.append(CompiledBuffer(int(match["bytes"]), layer_of(operation, layers), operation))
    return tuple(sorted(found, key=lambda buffer: -buffer.bytes)[:_COUNT])


def layer_of(operation: str, layers: Iterable[str]) -> str:
    """The innermost layer that an operation's scopes name.

    >>> layer_of("net_1/replay/conv2_1/convolution", {"conv2", "bn2"})
    'conv2'
    """
    known = set(layers)
    for scope in reversed(operation.split("/")[:-1]):
        name = next((name for name in (scope, re.sub(r"_\d+$", "", scope)) if name in known), None)
        if name is not None:
            return name
    return ""


def _read(dump: pathlib.Path, pattern: str) -> str:
    """The largest dumped text of a kind: that of the step, should there be other modules."""
    paths = sorted(dump.glob(pattern), key=lambda path: path.stat().st_size)
    return paths[-1].read_text(errors="replace") if paths else ""
