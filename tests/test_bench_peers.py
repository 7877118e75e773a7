"""Other ways to recompute, as `tfgc bench peers` runs them: what is wrong with them is told, and only that."""

import itertools
import sys

import keras
import numpy as np
import pytest

from tfgc._errors import TfgcError
from tfgc._measure import peers, worker
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


def test_what_rounding_does_to_plain_steps_is_allowed_twice():
    def update(weight, state):
        return {"w": np.array([weight, 0.0]), "s": np.array([state])}

    plain = [update(1.0, 1.0), update(1.1, 1.0)]
    assert peers.differing_parts(update(1.25, 1.0), plain, ["w"]) == ()
    assert peers.differing_parts(update(1.4, 1.0), plain, ["w"]) == ("gradients",)
    assert peers.differing_parts(update(1.0, 1.01), plain, ["w"]) == ("states",)


def test_a_case_without_pytorch_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    case = Case("net", ("sample_cnn", 32), "torch plain", "eager", 2, steps=1, peer="torch")
    with pytest.raises(TfgcError, match="pip install torch"):
        worker.measure(case)


def test_pytorch_is_measured_by_its_own_allocator():
    pytest.importorskip("torch")
    plain, parts = (
        worker.measure(Case("net", ("sample_cnn", 32), name, "eager", 8, steps=1, peer="torch", options=options))
        for name, options in (("torch plain", {}), ("torch checkpoint_sequential", {"checkpoint": True}))
    )
    assert parts["peak_bytes"] < plain["peak_bytes"]
    assert plain["losses"][0] == pytest.approx(parts["losses"][0], rel=1e-4)
