"""Keras's preprocessing layers inside of a model, as docs/limitations.md tells of them."""

import keras
import numpy as np
import pytest

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
    x = L.Dense(8, name="wide")(L.Embedding(8, 4, name="embedding")(layer(inputs)))
    return keras.Model(inputs, L.Dense(2)(L.Flatten()(x)))


def first_segment(model):
    return tfgc.plan(model, 4, strategy="manual", keep=["wide"]).segments[0]


def test_a_lookup_is_recomputed_and_trains_as_before():
    def model():
        keras.utils.set_random_seed(7)
        return embedded(L.IntegerLookup(vocabulary=[1, 2, 3], name="integer_lookup"), "int64")

    segment = first_segment(model())
    assert (segment.nodes, segment.mode) == (("integer_lookup", "embedding", "wide"), "recompute")
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
    segment = first_segment(embedded(make(), dtype))
    assert segment.nodes == (name, "embedding", "wide")
    assert (segment.mode, segment.obstacle) == ("recompute", None)
