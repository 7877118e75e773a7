"""A copy of an enabled model is a plain model, and `tfgc.status` says so."""

import copy
import pickle

import keras
import numpy as np
import pytest
from equality import fresh, mostly, noise

import tfgc

L = keras.layers
X, Y = noise(8, 6), noise(8, 3, seed=2)


def functional():
    return keras.Sequential([keras.Input((6,)), *[L.Dense(6, activation="tanh") for _ in range(4)], L.Dense(3)])


@keras.saving.register_keras_serializable("tfgc_tests")
class Subclassed(keras.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.parts = [L.Dense(6, activation="tanh") for _ in range(3)]
        self.head = L.Dense(3)

    def build(self, shape):
        for part in self.parts:
            part.build((None, 6))
        self.head.build((None, 6))

    def call(self, x):
        for part in self.parts:
            x = part(x)
        return self.head(x)


def subclassed():
    model = Subclassed()
    model.build((None, 6))
    return model


def saved(model, folder):
    model.save(folder / "model.keras")
    return keras.models.load_model(folder / "model.keras")


COPIES = {
    "deepcopy": lambda model, folder: copy.deepcopy(model),
    "pickle": lambda model, folder: pickle.loads(pickle.dumps(model)),
    "clone_model": lambda model, folder: keras.models.clone_model(model),
    "save": saved,
}
WAYS = {
    "a plan": (functional, lambda model: tfgc.plan(model, strategy="uniform", segments=2)),
    "no plan": (functional, lambda model: None),
    "layers": (functional, lambda model: {"layers": ["dense_1", "dense_2"]}),
    "layers of a subclassed model": (subclassed, lambda model: {"layers": L.Dense}),
    "no plan of a subclassed model": (subclassed, lambda model: None),
}


@pytest.mark.filterwarnings("ignore::tfgc.NothingSavedWarning")
@pytest.mark.parametrize("way", mostly("a plan", "no plan", "layers of a subclassed model", modes=WAYS))
def test_a_copy_is_not_enabled(way, tmp_path):
    build, what = WAYS[way]
    model = fresh(build)
    model.compile("sgd", "mse")
    how = what(model)
    tfgc.enable(model, verbose=0, **how) if isinstance(how, dict) else tfgc.enable(model, how, verbose=0)
    for trained in (False, True):
        if trained:
            model.train_on_batch(X, Y)
        before = str(tfgc.status(model))
        assert ": enabled" in before
        for name, read in COPIES.items():
            if name == "clone_model" and build is subclassed:
                continue  # Keras clones functional models
            other = read(model, tmp_path)
            assert str(tfgc.status(other)) == f"{other.name}: not enabled", name
            assert not tfgc.status(other).enabled, name
            for layer in [other, *other.layers]:
                assert not {"call", "train_step", "make_train_function"} & set(vars(layer)), name
            other.compile("sgd", "mse", run_eagerly=True)
            assert np.isfinite(other.train_on_batch(X, Y))
        assert str(tfgc.status(model)) == before
