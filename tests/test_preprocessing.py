"""Keras's preprocessing layers inside of a model, as docs/limitations.md describes them."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from equality import MODES, assert_equal, fresh, in_turn, noise, train

import tfgc

L = keras.layers
PLAIN = {
    "hashing": (lambda: L.Hashing(8), "int64"),
    "hashed_crossing": (lambda: lambda x: L.HashedCrossing(8)((x, x)), "int64"),
    "category_encoding": (lambda: L.CategoryEncoding(8, output_mode="one_hot"), "int64"),
    "discretization": (lambda: L.Discretization([0.0, 1.0, 2.0]), "float32"),
}


def embedded(layer, dtype):
    """A segment of the preprocessing layer and an embedding of its integers, and one behind it."""
    inputs = keras.Input((1,), dtype=dtype)
    x = L.Dense(64, "gelu")(L.Embedding(8, 4, name="embedding")(layer(inputs)))
    return keras.Model(inputs, L.Dense(2)(L.Dense(64, "gelu")(L.Flatten()(x))))


def is_recomputed(model):
    """Whether a plan runs the embedding again."""
    segments = tfgc.plan(model, 64, strategy="uniform", segments=4).segments
    return any("embedding" in name for each in segments if each.mode == "recompute" for name in each.nodes)


def test_a_lookup_trains_as_before():
    def model():
        keras.utils.set_random_seed(7)
        return embedded(L.IntegerLookup(vocabulary=[1, 2, 3], name="integer_lookup"), "int64")

    x, y = np.array([[1], [9]]), np.ones((2, 2), "float32")
    losses = []
    for enabled in (False, True):
        trained = model()
        if enabled:
            tfgc.enable(trained, tfgc.plan(trained, 2, strategy="uniform", segments=2))
        trained.compile("sgd", "mse")
        losses.append([trained.train_on_batch(x, y) for _ in range(2)])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-6)


@pytest.mark.parametrize("name", PLAIN)
def test_other_preprocessing_is_recomputed(name):
    make, dtype = PLAIN[name]
    assert is_recomputed(embedded(make(), dtype))


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


@pytest.mark.parametrize(("mode", "name"), in_turn(MODES, STRINGS))
def test_models_that_read_strings(name, mode):
    build, x = STRINGS[name]
    y = [noise(16, 2, seed=2)]
    expected = train(fresh(build), x, y, graph=True)
    model = fresh(build)
    tfgc.enable(model, tfgc.plan(model, strategy="uniform", segments=3))
    assert_equal(expected, train(model, x, y, graph=mode == "graph"), exact=mode == "eager")


@pytest.mark.parametrize("options", [{}, {"budget": "1MB"}], ids=["least peak", "budget"])
def test_models_that_read_strings_are_planned(options):
    for build, _ in STRINGS.values():
        plan = tfgc.plan(fresh(build), batch_size=16, **options)
        assert plan.outlook.peak_bytes > 0
