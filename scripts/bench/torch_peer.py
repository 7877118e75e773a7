"""PyTorch's `checkpoint_sequential` on a Keras network of plain layers, where PyTorch is installed.

The network is built of the same layers in the same order: Conv2D, MaxPooling2D, Dense, Flatten, Reshape to one
channel, and their ReLU. Memory is what PyTorch's profiler says its CPU allocator holds.
"""

import json
import pathlib
import statistics
import tempfile
import time

import keras

import tfgc

_SEGMENTS = 8


def measure(network, image_size, batch_size, way, steps):
    """Train for a step and `steps` counted ones, plainly or by `checkpoint_sequential`; the figures of the case."""
    import torch
    from torch.utils.checkpoint import checkpoint_sequential

    torch.manual_seed(0)
    model, shape = _converted(torch.nn, network, image_size)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.randn(batch_size, *shape), torch.randn(batch_size, 10)

    def step():
        optimizer.zero_grad(set_to_none=True)
        made = model(x) if way == "plain" else checkpoint_sequential(model, _SEGMENTS, x, use_reentrant=False)
        loss = torch.nn.functional.mse_loss(made, y)
        loss.backward()
        optimizer.step()
        return loss.item()

    seconds = []
    for _ in range(steps + 1):
        begin = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - begin)
    optimizer.zero_grad(set_to_none=True)
    return {"status": "ok", "peak": _peak(torch, step), "seconds": statistics.median(seconds[1:])}


def _converted(nn, network, image_size):
    """The network as a `torch.nn.Sequential`, and the shape of its input without the batch."""
    layers, shape = [], ()
    for layer in tfgc.zoo.build(network, image_size).layers:
        if isinstance(layer, keras.layers.InputLayer):
            shape = (1, *layer.output.shape[1:3])
        elif isinstance(layer, keras.layers.Conv2D):
            layers.append(nn.Conv2d(layer.input.shape[-1], layer.filters, layer.kernel_size, padding="same"))
        elif isinstance(layer, keras.layers.MaxPooling2D):
            layers.append(nn.MaxPool2d(layer.pool_size))
        elif isinstance(layer, keras.layers.Flatten):
            layers.append(nn.Flatten())
        elif isinstance(layer, keras.layers.Dense):
            layers.append(nn.Linear(layer.input.shape[-1], layer.units))
        elif not isinstance(layer, keras.layers.Reshape):
            raise ValueError(f"{network}: layer {layer.name!r} has no counterpart here in PyTorch")
        if getattr(layer, "activation", None) is keras.activations.relu:
            layers.append(nn.ReLU())
    return nn.Sequential(*layers), shape


def _peak(torch, step):
    """Largest count of allocated bytes in a step, above what is there before it."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    held = sorted(
        (e["ts"], e["args"]["Total Allocated"], e["args"]["Bytes"]) for e in events if e["name"] == "[memory]"
    )
    return int(max(total for _, total, _ in held) - (held[0][1] - held[0][2]))
