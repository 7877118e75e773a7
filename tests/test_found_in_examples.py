"""Defects that showed in published examples of Keras, each kept as a small test."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from equality import MODES, assert_equal, fresh, noise, train

import tfgc

L = keras.layers
WORDS = tf.constant(np.array([["a b"], ["c a b"], ["b"], ["c"]] * 4, dtype=object))


def tabular():
    """Categories as strings, looked up in the model, beside a number: as in TabTransformer and Wide & Deep."""
    kind, number = keras.Input((1,), dtype="string", name="kind"), keras.Input((1,), name="number")
    looked_up = L.StringLookup(vocabulary=["a b", "b", "c"])(kind)
    x = L.Concatenate()([L.Flatten()(L.Embedding(5, 6)(looked_up)), number])
    for _ in range(3):
        x = L.Dropout(0.2)(L.Dense(8, activation="selu")(x))
    return keras.Model({"kind": kind, "number": number}, L.Dense(2)(x))


def text():
    """Raw text in, split and looked up in the model."""
    words = keras.Input((1,), dtype="string")
    tokens = L.TextVectorization(vocabulary=["a", "b", "c"], output_sequence_length=4)(words)
    x = L.Dense(6, activation="tanh")(L.Embedding(6, 4, mask_zero=True)(tokens))
    return keras.Model(words, L.Dense(2)(L.Dropout(0.2)(L.GlobalAveragePooling1D()(x))))


STRINGS = {"looked up": (tabular, {"kind": WORDS, "number": noise(16, 1)}), "text": (text, WORDS)}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", STRINGS)
def test_models_that_read_strings(name, mode):
    build, x = STRINGS[name]
    y = [noise(16, 2, seed=2)]
    expected = train(fresh(build), x, y, graph=mode != "eager")
    model = fresh(build)
    tfgc.enable(model, tfgc.plan(model, strategy="uniform", segments=3), compile_segments=mode == "compiled")
    assert_equal(expected, train(model, x, y, graph=mode == "graph"), exact=mode == "eager")


@pytest.mark.parametrize("options", [{}, {"budget": "1MB"}], ids=["least peak", "budget"])
def test_models_that_read_strings_are_planned(options):
    for build, _ in STRINGS.values():
        plan = tfgc.plan(fresh(build), batch_size=16, **options)
        assert plan.outlook.peak_bytes > 0


class Checked(L.Layer):
    """Raises where a number is none: changes nothing, and may be run again."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense = L.Dense(8)

    def call(self, x):
        return tf.debugging.check_numerics(self.dense(x), "not a number")


class Aligned(L.Layer):
    """CTC's loss, whose operations fill an array that begins empty."""

    def call(self, x):
        letters = tf.tile([[1, 2, 1]], [tf.shape(x)[0], 1])
        ones = tf.ones_like(letters[:, 0])
        return x + tf.reduce_mean(keras.ops.ctc_loss(letters, x, 3 * ones, 6 * ones))


@pytest.mark.parametrize("layer", [Checked, Aligned])
def test_what_only_looks_like_an_effect_is_recomputed(layer):
    """No warning, and the layer runs again."""

    def build():
        return keras.Sequential([keras.Input((6, 8)), L.Dense(8), layer(), L.Dense(8), L.Dense(4)])

    x, y = noise(4, 6, 8), [noise(4, 6, 4, seed=2)]
    expected = train(fresh(build), x, y, graph=True)
    model = fresh(build)
    plan = tfgc.plan(model, strategy="uniform", segments=2)
    assert plan.segments[0].mode == "recompute"
    tfgc.enable(model, plan)
    assert_equal(expected, train(model, x, y, graph=True), exact=False)
