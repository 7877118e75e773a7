"""What a training step needs on a GPU, as XLA's compiler lays it out: `tfgc.compiled_memory`."""

import pathlib
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import keras

from tfgc import strategies
from tfgc._compiled import compiler, step, targets
from tfgc._core.plan import Plan
from tfgc._errors import TfgcError
from tfgc._framework import keras_models, keras_names, model_checks
from tfgc._records.compiled_memory import CompiledBuffer, CompiledMemory

_MOST_BUFFERS = 8
_LIVE = re.compile(r"^\s*(?P<name>[\w.\-]+)\{[\d,]*\}: (?P<bytes>\d+) bytes")
_METADATA = re.compile(r"^\s*(?:ROOT )?%?(?P<name>[\w.\-]+) = .*?op_name=\"(?P<operation>[^\"]*)\"", re.MULTILINE)


def compiled_memory(
    model: keras.Model,
    batch_size: int | None = None,
    plan: Plan | None = None,
    *,
    target: str = "h100",
    input_shapes: Mapping[str, Sequence[int | None]] | None = None,
    example: Any = None,
    loss: Any = None,
    optimizer: keras.Optimizer | str | None = None,
    timeout: float = 1800,
    dump: str | None = None,
) -> CompiledMemory:
    """Compile a training step for a GPU that is not there, and return the memory it would need.

    TensorFlow exports the step that `fit` compiles on a GPU as StableHLO, and XLA's GPU compiler, which the CUDA plugin
    of jax holds, compiles it in a child process. The figure is XLA's own assignment of buffers by that version of the
    plugin. It is not a run: kernels are not timed, so the workspaces that autotuning may choose are not in it, and
    TensorFlow's own version of XLA may differ. It takes 10 seconds to several minutes.

    Args:
        model: A built `keras.Model`; it is as before afterwards.
        batch_size: Samples in a batch. Default: those of `example`.
        plan: A `Plan` for the model. Default: the step as plain Keras trains it.
        target: A GPU: "h100", "a100", "a100_40gb", "l4", "t4" or "v100".
        input_shapes: For each input its shape without the batch, where the model leaves sizes open.
        example: A batch `(x, y)` as `fit` gets it, for a model without known inputs, or whose loss is to be
            compiled too. Only its shapes and dtypes count. Default: the squared error of all outputs.
        loss: What `model.compile` takes; it needs an `example`. Default: the loss that the model is compiled with;
            without an example, the squared error.
        optimizer: A `keras.Optimizer` or its name. Default: the one that the model is compiled with, or Adam.
        timeout: Seconds after which to stop the compiler.
        dump: A folder to keep XLA's dump in: modules before and after optimization, and its buffer assignment.

    Returns:
        A `CompiledMemory`; print it.

    Raises:
        OptionError: For an unknown target, an open size, a batch size that is not given, or a loss without an example.
        UnsupportedModelError: If XLA cannot compile the step; it names the operation.
        TfgcError: If the compiler is not installed (`pip install "tfgc[compile]"`), or out of time or memory.

    Example:
        >>> import keras, tfgc
        >>> convolutions = [keras.layers.Conv2D(8, 3, padding="same", activation="relu") for _ in range(8)]
        >>> model = keras.Sequential([keras.Input((64, 64, 3)), *convolutions])
        >>> plain = tfgc.compiled_memory(model, 32, target="t4")  # doctest: +SKIP
        >>> plan = tfgc.plan(model, 32, mode="xla")
        >>> planned = tfgc.compiled_memory(model, 32, plan, target="t4")  # doctest: +SKIP
        >>> planned.temp_bytes < plain.temp_bytes, planned.fits  # doctest: +SKIP
        (True, True)
    """
    model_checks.check_model(model)
    strategies.check_plan(plan)
    device = targets.find(target)
    if optimizer is not None:
        keras_names.optimizer(optimizer)
    batch = step.batch(model, batch_size, input_shapes, example, loss)
    compiler.check_installed()
    with tempfile.TemporaryDirectory(prefix="tfgc-") as folder:
        _copy(folder, dump)
        texts = pathlib.Path(folder)
        try:
            found = compiler.run(step.stable_hlo(model, plan, batch, optimizer), device, timeout, texts)
        finally:
            _copy(folder, dump)
        buffers = _largest_buffers(texts, model)
    kept = found["argument_bytes"] + found["output_bytes"] - found["alias_bytes"]
    return CompiledMemory(
        target, device.device, device.memory_bytes, kept + found["temp_bytes"], found["argument_bytes"],
        found["temp_bytes"], buffers, found["seconds"], found["compiler"],
    )  # fmt: skip


def _copy(folder: str, dump: str | None) -> None:
    """Copy texts to where the user wants them; `dump` itself may hold those of earlier steps."""
    if dump is not None:
        try:
            shutil.copytree(folder, dump, dirs_exist_ok=True)
        except OSError as error:
            raise TfgcError(f"cannot write {str(dump)!r}: {error.strerror or error}") from error


def _largest_buffers(dump: pathlib.Path, model: keras.Model) -> tuple[CompiledBuffer, ...]:
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
            found.append(CompiledBuffer(int(match["bytes"]), _layer_of(operation, layers), operation))
    return tuple(sorted(found, key=lambda buffer: -buffer.bytes)[:_MOST_BUFFERS])


def _layer_of(operation: str, known: set[str]) -> str:
    """The innermost layer that an operation's scopes name.

    >>> _layer_of("net_1/replay/conv2_1/convolution", {"conv2", "bn2"})
    'conv2'
    """
    for scope in reversed(operation.split("/")[:-1]):
        name = next((name for name in (scope, re.sub(r"_\d+$", "", scope)) if name in known), None)
        if name is not None:
            return name
    return ""


def _read(dump: pathlib.Path, pattern: str) -> str:
    """The largest dumped text of a kind: that of the step, should there be other modules."""
    paths = sorted(dump.glob(pattern), key=lambda path: path.stat().st_size)
    return paths[-1].read_text(errors="replace") if paths else ""
