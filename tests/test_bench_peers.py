"""Other ways to recompute, as `tfgc bench peers` runs them: what is wrong with them is reported, and only that."""

import contextlib
import itertools
import json
import pathlib
import sys
import types

import keras
import numpy as np
import pytest

from tfgc._errors import TfgcError
from tfgc._measure import peers, torch_peer, worker
from tfgc._records.job import Case


def dropping():
    layers = [[keras.layers.Dense(16), keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)] for _ in range(4)]
    return keras.Sequential([keras.Input((16,)), *itertools.chain(*layers), keras.layers.Dense(2)])


def pure():
    return keras.Sequential([keras.Input((16,)), *(keras.layers.Dense(16, activation="gelu") for _ in range(9))])


@pytest.mark.gate
@pytest.mark.parametrize(
    ("build", "peer", "mode", "wrong"),
    [
        (dropping, None, "graph", ()),
        pytest.param(dropping, None, "eager", (), marks=pytest.mark.slow),
        (dropping, "recompute_grad", "graph", ("gradients", "states")),
        pytest.param(pure, "recompute_grad", "eager", (), marks=pytest.mark.slow),
        pytest.param(pure, "RematScope list_of_layers", "eager", (), marks=pytest.mark.slow),
    ],
)
def test_the_first_update_is_compared_with_plain_ones(build, peer, mode, wrong):
    case = Case("net", (build, None), peer or "plain", mode, 8, steps=1, peer=peer, compare_first_update=True)
    assert worker.measure(case)["wrong"] == wrong


def test_twice_the_rounding_of_plain_steps_is_allowed():
    def update(weight, state):
        return {"w": np.array([weight, 0.0]), "s": np.array([state])}

    plain = [update(1.0, 1.0), update(1.1, 1.0)]
    assert peers.differing_parts(update(1.25, 1.0), plain, ["w"]) == ()
    assert peers.differing_parts(update(1.4, 1.0), plain, ["w"]) == ("gradients",)
    assert peers.differing_parts(update(1.0, 1.01), plain, ["w"]) == ("states",)


def test_an_update_that_is_not_a_number_is_wrong():
    plain = [{"w": np.ones(2), "s": np.ones(1)}] * 2
    assert peers.differing_parts({"w": np.full(2, np.nan), "s": np.ones(1)}, plain, ["w"]) == ("gradients",)
    unknown = [{"w": np.full(2, np.nan), "s": np.ones(1)}] * 2
    assert peers.differing_parts(plain[0], unknown, ["w"]) == ("gradients",)


def test_a_case_without_pytorch_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    case = Case("net", ("sample_cnn", 32), "torch plain", "eager", 2, steps=1, peer="torch")
    with pytest.raises(TfgcError, match="pip install torch"):
        worker.measure(case)


class Loss:
    """The loss in the stand-in for PyTorch: it falls with all that was done before."""

    def __init__(self, done):
        self.done = done

    def backward(self):
        self.done.append("backward")

    def item(self):
        return 1.0 / len(self.done)


def stand_in(traces):
    """What `torch_peer` uses of PyTorch: layers are their names and arguments, profiles are the given traces."""
    done = []
    torch = types.ModuleType("torch")
    torch.__version__ = "0"
    torch.manual_seed = lambda seed: None
    torch.randn = lambda *shape: shape

    def layer(name):
        return lambda *args, **options: (name, *args, *options.values())

    class Sequential(list):
        def __init__(self, *layers):
            super().__init__(layers)

        def parameters(self):
            return self

        def __call__(self, x):
            done.append("plain")
            return x

    def checkpoint_sequential(model, segments, x, use_reentrant):
        done.append(f"{segments} segments of {len(model)} layers")
        return x

    def sgd(parameters, lr):
        return types.SimpleNamespace(zero_grad=lambda set_to_none: None, step=lambda: done.append("update"))

    @contextlib.contextmanager
    def profile(activities, profile_memory):
        yield types.SimpleNamespace(export_chrome_trace=lambda path: pathlib.Path(path).write_text(json.dumps(traces)))

    torch.nn = types.SimpleNamespace(
        Sequential=Sequential,
        functional=types.SimpleNamespace(mse_loss=lambda predictions, y: Loss(done)),
        **{name: layer(name) for name in ("Conv2d", "MaxPool2d", "Flatten", "Linear", "ReLU")},
    )
    torch.optim = types.SimpleNamespace(SGD=sgd)
    torch.profiler = types.SimpleNamespace(profile=profile, ProfilerActivity=types.SimpleNamespace(CPU="CPU"))
    checkpoint = types.ModuleType("torch.utils.checkpoint")
    checkpoint.checkpoint_sequential = checkpoint_sequential
    modules = {"torch": torch, "torch.utils": types.ModuleType("torch.utils"), "torch.utils.checkpoint": checkpoint}
    return modules, done


def allocated(time, total, count):
    return {"name": "[memory]", "ts": time, "args": {"Total Allocated": total, "Bytes": count}}


# In no order, among other events: 1000 bytes before the step, which takes 500 and 700 more and gives 500 back.
TRACE = {
    "traceEvents": [
        {"name": "aten::conv2d", "ts": 2},
        allocated(3, 2200, 700),
        allocated(4, 1700, -500),
        allocated(1, 1500, 500),
    ]
}


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_case_of_pytorch_is_run_and_read_as_its_options_say(checkpoint, monkeypatch):
    """With a stand-in for PyTorch, which need not be installed."""
    modules, done = stand_in(TRACE)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    options = {"checkpoint": True} if checkpoint else {}
    found = worker.measure(Case("net", ("sample_cnn", 32), "torch", "eager", 8, steps=2, peer="torch", options=options))
    forward = "8 segments of 37 layers" if checkpoint else "plain"
    assert done == [forward, "backward", "update"] * 4  # one to warm up, two, and the one that is profiled
    assert found["peak_bytes"] == found["peak_bytes_max"] == 2200 - 1000
    assert found["detail"] == ("8 segments" if checkpoint else "")
    assert found["losses"] == (1 / 3, 1 / 6, 1 / 9)
    assert found["step_seconds"] > 0


def test_a_network_is_converted_layer_by_layer(monkeypatch):
    modules, _ = stand_in(TRACE)
    layers, shape = torch_peer._converted(modules["torch"], "sample_cnn", 32)
    assert shape == (1, 32, 32)
    assert layers[:4] == [
        ("Conv2d", 1, 10, (5, 5), "same"),
        ("ReLU",),
        ("MaxPool2d", (1, 1)),
        ("Conv2d", 10, 20, (5, 5), "same"),
    ]
    assert layers[-1] == ("Linear", 32, 10)
    with pytest.raises(TfgcError, match=r"resnet18: layer '\w+' has no counterpart here in PyTorch"):
        torch_peer._converted(modules["torch"], "resnet18", 32)


def test_pytorch_is_measured_by_its_allocator():
    """Where PyTorch is installed, which no extra of tfgc asks for."""
    pytest.importorskip("torch")
    plain, parts = (
        worker.measure(Case("net", ("sample_cnn", 32), name, "eager", 8, steps=1, peer="torch", options=options))
        for name, options in (("torch plain", {}), ("torch checkpoint_sequential", {"checkpoint": True}))
    )
    assert parts["peak_bytes"] < plain["peak_bytes"]
    assert plain["losses"][0] == pytest.approx(parts["losses"][0], rel=1e-4)
