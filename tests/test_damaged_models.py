"""Saved models that were changed at random: planned, or refused in one line, and no file is left."""

import copy
import json
import random
import warnings
import zipfile

import keras
import pytest
from click.testing import CliRunner
from damages import damaged_model, is_refused
from keras.src.models import functional
from memory import alone

from tfgc import TfgcError
from tfgc._cli.commands import plan
from tfgc._framework import model_loading

L = keras.layers


def network():
    inputs = x = keras.Input((8, 8, 3), name="image")
    for filters in (4, 8):
        x = L.BatchNormalization()(L.Conv2D(filters, 3, padding="same", activation="relu")(x))
    inner = keras.Sequential([keras.Input((8, 8, 8)), L.Conv2D(8, 1), L.ReLU()], name="inner")
    return keras.Model(inputs, L.Dense(4)(L.Dropout(0.2)(L.GlobalAveragePooling2D()(L.Add()([x, inner(x)])))))


def run(folder):
    arguments = [str(folder / "m.keras"), "--batch-size", "2", "-o", str(folder / "plan.json")]
    result = CliRunner().invoke(plan.command, arguments, catch_exceptions=False)
    assert result.exit_code == 0


def refused(count, folder, seed):
    """How many of so many damaged models are refused."""
    file, rng, found = folder / "m.keras", random.Random(seed), 0
    network().save(file)
    whole = file.read_bytes()
    warnings.simplefilter("ignore")  # Keras's, of what it leaves out
    for _ in range(count):
        file.write_bytes(damaged_model(whole, rng))
        was_refused = is_refused(run, folder)
        found += was_refused
        assert sorted(path.name for path in folder.iterdir()) == ["m.keras", "plan.json"][: 2 - was_refused]
        (folder / "plan.json").unlink(missing_ok=True)
    return found


@pytest.mark.parametrize(
    ("count", "seed"),
    [
        pytest.param(60, 0, marks=pytest.mark.gate),
        *(pytest.param(200, seed, marks=pytest.mark.slow) for seed in range(1, 11)),
    ],
)
def test_damaged_models_are_refused_in_one_line(count, seed, tmp_path):
    """In another process, which native code that reads the file may end."""
    assert 0.4 * count < alone(refused, count, tmp_path, seed) < 0.9 * count


def lose_an_input(layers):
    """The last node refers to the second call of a layer that is called once."""
    layers[-1]["inbound_nodes"][0]["args"][0]["config"]["keras_history"][1] += 1


def repeat_a_layer(layers):
    layers.insert(1, copy.deepcopy(layers[1]))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("change", [lose_an_input, repeat_a_layer])
def test_a_graph_that_cannot_be_rebuilt_is_refused(change, tmp_path):
    """Keras 3.13 tries for ever."""
    network().save(tmp_path / "m.keras")
    with zipfile.ZipFile(tmp_path / "m.keras") as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    config = json.loads(parts["config.json"])
    change(config["config"]["layers"])
    parts["config.json"] = json.dumps(config).encode()
    with zipfile.ZipFile(tmp_path / "m.keras", "w") as archive:
        for name, data in parts.items():
            archive.writestr(name, data)
    said = "its graph has a loop|two layers have one name|Invalid Functional"
    with pytest.raises(TfgcError, match=rf"m.keras' cannot be loaded: ValueError: ({said})"):
        run(tmp_path)


def test_a_node_is_tried_at_most_once_more_than_there_are_nodes():
    """As Keras 3.13 tries one whose input never comes."""
    layers, node = {"a": keras.Input((4,))._keras_history.operation}, {"args": [], "kwargs": {}}
    with model_loading.ending():
        for _ in range(2):
            functional.deserialize_node(node, layers)
        with pytest.raises(ValueError, match="a loop, or a node whose inputs do not exist"):
            functional.deserialize_node(node, layers)
    functional.deserialize_node(node, layers)


@pytest.mark.parametrize("contents", [b"", b"PK\x03\x04", b"no archive", b"\x89HDF\r\n\x1a\n"])
def test_what_is_no_saved_model_is_refused(contents, tmp_path):
    (tmp_path / "m.keras").write_bytes(contents)
    with pytest.raises(TfgcError, match=r"m.keras' is not a saved Keras model, or a damaged one: save it again with"):
        run(tmp_path)
    assert not (tmp_path / "plan.json").exists()
