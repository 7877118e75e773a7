"""`scripts/keras_tests.py`: other people's tests with tfgc forced on, and what it makes of their ends."""

import importlib.util
import pathlib
import time

import keras
import keras_files
import pytest
import tensorflow as tf
from layerwise import compare

import tfgc

ROOT = pathlib.Path(__file__).parent.parent
spec = importlib.util.spec_from_file_location("keras_tests", ROOT / "scripts" / "keras_tests.py")
keras_tests = importlib.util.module_from_spec(spec)
spec.loader.exec_module(keras_tests)

ARGUMENTS = dict.fromkeys(
    ["input_data", "input_dtype", "input_sparse", "input_ragged", "call_kwargs", "custom_objects"]
)
ARGUMENTS |= {"run_mixed_precision_check": True}


@pytest.mark.parametrize("wrap", [tfgc.recompute, tf.recompute_grad], ids=["tfgc", "tf.recompute_grad"])
def test_layers_are_compared_so_that_another_mask_is_seen(wrap):
    arguments = ARGUMENTS | {"init_kwargs": {"rate": 0.5}, "input_shape": (2, 3, 4)}
    found = {c.what: c.outcome for c in compare(keras.layers.Dropout, arguments, wrap)}
    assert len(found) == 8
    wrong = {what for what, outcome in found.items() if outcome != "equal"}
    assert wrong == (set() if wrap is tfgc.recompute else {what for what in found if what.startswith("recompute")})


def test_what_plain_keras_refuses_is_not_counted_against_tfgc():
    class Odd(keras.layers.Layer):
        def call(self, x):
            raise ValueError("not today")

    arguments = ARGUMENTS | {"init_kwargs": {}, "input_shape": (2, 3), "custom_objects": {"Odd": Odd}}
    assert [(c.what, c.outcome) for c in compare(Odd, arguments)] == [("float32", "plain"), ("mixed_float16", "plain")]


def test_steps_are_compared_until_plain_training_diverges():
    class Explodes(keras.layers.Layer):
        def __init__(self, size=1e30, **kwargs):
            super().__init__(**kwargs)
            self.size = size

        def get_config(self):
            return super().get_config() | {"size": self.size}

        def call(self, x):
            return x * self.size

    def found(size):
        arguments = ARGUMENTS | {
            "init_kwargs": {"size": size},
            "input_shape": (2, 3),
            "run_mixed_precision_check": False,
        }
        return [(c.outcome, c.words) for c in compare(Explodes, arguments | {"custom_objects": {"Explodes": Explodes}})]

    assert found(1e30) == [("plain", "diverges in the first step")]
    assert found(1e10) == [("equal", "")] * 4  # its second step is infinite


THEIRS = """
import os
import warnings

import jax.experimental.sparse as not_installed
import keras
import numpy as np
import pytest

def fitted(*layers):
    model = keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    model.fit(np.ones((4, 4)), np.ones((4, 2)), verbose=0)
    return model

def is_enabled(model):
    return "call" in vars(model)

def test_passes():
    fitted(keras.layers.Dense(4), keras.layers.Dense(4))

def test_a_model_that_changed_is_forced_again():
    model = fitted(keras.layers.Dense(4), keras.layers.Dense(4))
    model.pop()
    model.compile("sgd", "mse")
    model.fit(np.ones((4, 4)), np.ones((4, 4)), verbose=0)

def test_fails_plainly_too():
    raise OSError("no such thing")

@pytest.mark.skip
def test_skipped():
    pass

def test_another_result():
    assert not is_enabled(fitted())

def test_an_error():
    if is_enabled(fitted()):
        raise KeyError("call")

def test_ends_the_process():
    if is_enabled(fitted()):
        os.abort()

def test_behind_it():
    pass
"""


@pytest.mark.gate
def test_every_end_of_a_test_is_distinguished(tmp_path):
    path = tmp_path / "theirs_test.py"
    path.write_text(THEIRS)
    ((name, row),) = keras_files.run_all([str(path)], 1, time.monotonic() + 300)
    assert name == str(path)
    assert [row[count] for count in ("tests", "mismatches", "crashes", "kept", "plain")] == [6, 1, 2, 0, 1]
    # The row of a process that ended has no counts.
    assert (row["comparisons"], row["enabled"]) == (4, 4)
    assert row["replays"] >= 2
    assert [(kind, words.partition(":")[0]) for kind, words in row["told"]] == [
        ("plain", "test_fails_plainly_too"),
        ("mismatch", "test_another_result"),
        ("crash", "test_an_error"),
        ("crash", "test_ends_the_process"),
    ]


def test_the_table_adds_up_areas_and_gives_reasons():
    row = dict.fromkeys(keras_files.COUNTS, 1) | {"kept_by_reason": {"it draws": 2}, "not_enabled": {}, "told": []}
    files = {"layers/a_test.py": row, "layers/b_test.py": row, "models/a_test.py": row}
    lines = list(keras_tests.table({"files": files, "found": {"models": 5, "layers": 2}}))
    expected = ["| models | 1 of 5 |" + " 1 |" * 8, "| layers | 2 of 2 |" + " 2 |" * 8, "| all | 3 of 7 |" + " 3 |" * 8]
    assert lines[2:5] == expected
    assert lines[-1] == "- 6: it draws"
