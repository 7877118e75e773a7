"""What is no model of Keras on TensorFlow: told at every entry before anything is changed, with what to call."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfgc
from tfgc import _user_modules

L = keras.layers
X = np.ones((4, 8), "float32")
# Every entry point that takes a model.
ENTRIES = {
    "enable": tfgc.enable,
    "enable layers": lambda m: tfgc.enable(m, layers=["dense"]),
    "enable budget": lambda m: tfgc.enable(m, budget="70%"),
    "disable": tfgc.disable,
    "status": tfgc.status,
    "plan": lambda m: tfgc.plan(m, 4),
    "plan confirm": lambda m: tfgc.plan(m, 4, confirm=True),
    "estimate": lambda m: tfgc.estimate(m, 4),
    "pareto": lambda m: tfgc.pareto(m, 4),
    "split": lambda m: tfgc.split(m, 2),
    "train_step": lambda m: tfgc.train_step(m, "mse", "sgd"),
    "verify": lambda m: tfgc.verify(m, None, X),
    "compiled_memory": lambda m: tfgc.compiled_memory(m, 4),
}


class Own(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = L.Dense(3)

    def call(self, x):
        return self.dense(x)


class Module(tf.Module):
    def __init__(self):
        super().__init__()
        self.w = tf.Variable(tf.ones((8, 3)))

    def forward(self, x):
        return tf.tanh(x @ self.w)


def net():
    return keras.Sequential([keras.Input((8,)), L.Dense(8), L.Dense(3)])


LegacyModel = type("Sequential", (tf.Module,), {"__module__": "tf_keras.src.engine.sequential"})


def gradient(function, weights):
    with tf.GradientTape() as tape:
        y = tf.reduce_sum(function(tf.constant(X)) ** 2)
    return tape.gradient(y, weights())


def recomputes(function, weights):
    """Whether a function trains the same recomputed."""
    plain, again = gradient(function, weights), gradient(tfgc.recompute(function), weights)
    return all(np.array_equal(a, b) for a, b in zip(plain, again, strict=True))


dense, module = L.Dense(3), Module()
# What is given in place of a model, what is said of it, and what that advises, which works.
GIVEN = [
    (dense, "it is a layer: in a loop of your own, tfgc.recompute(layer)",
     lambda: recomputes(dense, lambda: dense.trainable_variables)),
    (Own, "it is a class: give a model, as Own(...) makes one", lambda: tfgc.enable(Own())),
    (L.Dense, "it is a class: give a model", lambda: tfgc.enable(net())),
    ([net(), net()], "give one model at a time", lambda: [tfgc.enable(model) for model in (net(), net())]),
    ([L.Dense(3), dense], "keras.Sequential(layers) makes a model", lambda: tfgc.enable(keras.Sequential([dense]))),
    ([], "give the model itself", lambda: tfgc.enable(net())),
    (module, "tfgc.recompute(module.method)", lambda: recomputes(module.forward, lambda: [module.w])),
    (tf.function(module.forward), "tfgc.recompute(function)",
     lambda: recomputes(tf.function(module.forward), lambda: [module.w])),
    (net, "If it builds a model, give what it returns", lambda: tfgc.enable(net())),
    # That a layer of tf_keras can be recomputed was seen with tf_keras 2.21; it is not installed here.
    (LegacyModel(), "it is of tf_keras, and tfgc takes models of Keras 3", lambda: True),
    ("resnet50", "tfgc.zoo.build('resnet50'), for example", lambda: tfgc.zoo.build("sample_cnn", 16)),
    (None, "give the model itself (compile, build and fit return something else)", lambda: tfgc.enable(net())),
    (3, "3 is not a keras.Model: give the model itself", lambda: tfgc.enable(net())),
]  # fmt: skip


@pytest.mark.parametrize("given", GIVEN, ids=lambda given: given[1])
def test_what_is_no_model_is_told_what_to_call_instead(given):
    what, said, advised = given
    for name, entry in ENTRIES.items():
        with pytest.raises(tfgc.UnsupportedModelError, match=r" is not a keras\.Model: ") as error:
            entry(what)
        assert said in str(error.value), name
        assert len(str(error.value)) < 300
    assert advised()


def test_a_builder_that_returns_something_else(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "builders.py").write_text("import keras\ndef layer(): return keras.layers.Dense(2)\n")
    _user_modules.install([str(tmp_path)])
    with pytest.raises(tfgc.OptionError, match=r"'builders:layer' must return .*it is a layer: in a loop"):
        tfgc.zoo.build("builders:layer")


@pytest.mark.gate
def test_a_builder_that_returns_something_else_in_a_child_process():
    def layer():
        return keras.layers.Dense(2)

    with pytest.raises(tfgc.OptionError, match=r"'layer' must return a keras.Model, .*it is a layer: in a loop"):
        tfgc.compare(layer, 4)


def train_with_peak(model):
    callback = tfgc.PeakMemory()
    callback.set_model(model)
    callback.on_train_begin()


def test_another_backend_of_keras_is_told_before_anything_is_changed(monkeypatch):
    """That the messages come on JAX itself, and what they advise works, was seen with jax 0.10."""
    model = net()
    model.compile("sgd", "mse")
    before = [dict(vars(part)) for part in (model, *model.layers)]
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    others = {"recompute": tfgc.recompute, "peak": train_with_peak, "zoo": lambda m: tfgc.zoo.build("sample_cnn", 16)}
    for name, entry in (ENTRIES | others).items():
        with pytest.raises(tfgc.UnsupportedModelError, match=r"runs on Keras's backend 'jax', and tfgc") as error:
            entry(model)
        assert "set KERAS_BACKEND=tensorflow in the environment before Python imports Keras" in str(error.value), name
    assert before == [dict(vars(part)) for part in (model, *model.layers)]
