"""PyTorch's `checkpoint_sequential` on a Keras network of plain layers, where PyTorch is installed.

The network is built of the same layers in the same order: Conv2D, MaxPooling2D, Dense, Flatten, Reshape to one
channel, and their ReLU. Memory is what PyTorch's profiler says its CPU allocator holds.
"""

import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import keras

from tfgc import _temporary, zoo
from tfgc._errors import TfgcError
from tfgc._measure import training_run
from tfgc._records.job import Case

_SEGMENTS = 8


def measure(case: Case) -> dict[str, Any]:
    """Run a plain case, or one under `checkpoint_sequential`; return the measured fields of a `Measurement`."""
    try:
        import torch  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise TfgcError("PyTorch is not installed: pip install torch") from error
    from torch.utils.checkpoint import checkpoint_sequential  # pyright: ignore[reportMissingImports]

    torch.manual_seed(0)
    model, shape = _converted(torch, *case.build)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.randn(case.batch_size, *shape), torch.randn(case.batch_size, 10)

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        if case.options.get("checkpoint"):
            predictions = checkpoint_sequential(model, _SEGMENTS, x, use_reentrant=False)
        else:
            predictions = model(x)
        loss = torch.nn.functional.mse_loss(predictions, y)
        loss.backward()
        optimizer.step()
        return loss.item()

    started = time.time()
    seconds, losses = [], []
    for _ in range(case.steps + 1):
        begin = time.perf_counter()
        losses.append(step())
        seconds.append(time.perf_counter() - begin)
    optimizer.zero_grad(set_to_none=True)
    peak = _peak(torch, step)
    return {
        "detail": f"{_SEGMENTS} segments" if case.options.get("checkpoint") else "",
        "started": started,
        "ended": time.time(),
        "peak_bytes": peak,
        "peak_bytes_max": peak,
        "step_seconds": statistics.median(seconds[1:]),
        "first_step_seconds": seconds[0],
        "losses": tuple(losses),
        "device": "CPU:0",
        "machine": training_run.machine(torch=torch.__version__),
    }


def _shape(tensor: Any) -> tuple[int, ...]:
    """The shape of one tensor, without the batch."""
    return tensor.shape[1:]


def _converted(torch: Any, name: Any, image_size: int | None) -> tuple[Any, tuple[int, ...]]:
    """The network as a `torch.nn.Sequential`, and the shape of its input without the batch."""
    nn, layers, shape = torch.nn, [], ()
    for layer in zoo.build(name, image_size).layers:
        if isinstance(layer, keras.layers.InputLayer):
            height, width, *_ = _shape(layer.output)
            shape = (1, height, width)
        elif isinstance(layer, keras.layers.Conv2D):
            layers.append(nn.Conv2d(_shape(layer.input)[-1], layer.filters, layer.kernel_size, padding="same"))
        elif isinstance(layer, keras.layers.MaxPooling2D):
            layers.append(nn.MaxPool2d(layer.pool_size))
        elif isinstance(layer, keras.layers.Flatten):
            layers.append(nn.Flatten())
        elif isinstance(layer, keras.layers.Dense):
            layers.append(nn.Linear(_shape(layer.input)[-1], layer.units))
        elif not isinstance(layer, keras.layers.Reshape):
            raise TfgcError(f"{name}: layer {layer.name!r} has no counterpart here in PyTorch")
        if getattr(layer, "activation", None) is keras.activations.relu:
            layers.append(nn.ReLU())
    return nn.Sequential(*layers), shape


def _peak(torch: Any, step: Callable[[], float]) -> int:
    """Largest count of allocated bytes in a step, above what is there before it."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    with _temporary.folder() as folder:
        path = os.path.join(folder, "trace.json")
        profiler.export_chrome_trace(path)
        with open(path) as file:
            trace = json.load(file)["traceEvents"]
    held = sorted((e["ts"], e["args"]["Total Allocated"], e["args"]["Bytes"]) for e in trace if e["name"] == "[memory]")
    return int(max(total for _, total, _ in held) - (held[0][1] - held[0][2]))
