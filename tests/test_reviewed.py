"""Defects that a review found by reading, each kept as a test."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from equality import MODES, assert_equal, fresh, in_turn, noise, plain_steps, train
from test_shared_traces import by_block, kinds

import tfgc

L = keras.layers
X, Y = noise(16, 8), [noise(16, 4, seed=2)]


def chosen(model, names, mode):
    return tfgc.enable(model, layers=names, compile_segments=mode == "compiled")


class Numbered(L.Layer):
    """Is handed Python numbers and an object."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense = L.Dense(8)

    def call(self, x, step=0, alpha=1.0, more=None):
        return keras.ops.tanh(self.dense(x)) * (step + 1) * alpha * (1.0 if more is None else more["scale"])


class Stepping(keras.Model):
    def __init__(self):
        super().__init__()
        self.block, self.head = Numbered(name="block"), L.Dense(4)
        self.alpha = 1.0

    def call(self, x, training=None):
        self.alpha *= 0.5
        for i in range(3):
            x = self.block(x, step=i, alpha=self.alpha, more={"scale": 2.0 + i} if i == 2 else None)
        return self.head(x)


@pytest.mark.parametrize("mode", ["eager", "compiled"])
def test_python_numbers_are_those_of_each_call(mode):
    def build():
        model = Stepping()
        model(X)
        keras.utils.set_random_seed(3)
        return model

    plain, ours = fresh(build), fresh(build)
    expected = train(plain, X, Y, lr=0.01)
    chosen(ours, ["block"], mode)
    # The block's weights have three uses.
    assert_equal(expected, train(ours, X, Y, lr=0.01), exact=False)


class Fixed(L.Layer):
    """Keras lets `training=False` of a sublayer stay for all calls that follow in the outer one."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.before, self.norm, self.after = L.Dropout(0.5), L.BatchNormalization(), L.Dropout(0.5)
        self.dense = L.Dense(8)

    def call(self, x):
        return self.after(self.norm(self.dense(self.before(x)), training=False))


class Siblings(keras.Model):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.drop = Fixed(name="first"), Fixed(name="second"), L.Dropout(0.5)
        self.head = L.Dense(4)

    def call(self, x, training=None):
        return self.head(self.drop(self.second(self.first(x))))


@pytest.mark.parametrize(("names", "mode"), in_turn([["first"], ["first", "second"]]))
def test_a_sublayer_with_a_training_of_its_own(names, mode):
    def build():
        model = Siblings()
        model(X)
        keras.utils.set_random_seed(3)
        return model

    expected = plain_steps(build, X, Y, graph=mode != "eager")
    model = fresh(build)
    chosen(model, names, mode)
    assert_equal(expected, train(model, X, Y, graph=mode == "graph"), exact=mode == "eager")


class Remembering(keras.Model):
    """Hands a tensor over by an attribute."""

    def __init__(self):
        super().__init__()
        self.encoder, self.head = L.Dense(8), L.Dense(4)
        self.block = Recalling(name="block")

    def call(self, x, training=None):
        self.block.memory = self.encoder(x)
        self.block.small = tf.reduce_mean(x, axis=0)
        y = self.head(self.block(x))
        self.block.memory = self.block.small = None
        return y


class Recalling(L.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense = L.Dense(8)
        self.memory = self.small = None

    def call(self, x):
        memory = 0.0 if self.memory is None else self.memory + self.small
        return keras.ops.tanh(self.dense(x)) * memory


def test_a_tensor_handed_over_by_an_attribute_is_that_of_each_call():
    def build():
        model = Remembering()
        model(X)
        keras.utils.set_random_seed(3)
        return model

    plain, ours = fresh(build), fresh(build)
    chosen(ours, ["block"], "compiled")

    def gradients(model, x):
        with tf.GradientTape() as tape:
            model.block.memory = model.encoder(x)
            model.block.small = tf.reduce_mean(x, axis=0)
            loss = tf.reduce_sum(model.head(model.block(x)) ** 2)
        return tape.gradient(loss, [v.value for v in model.trainable_variables])

    for seed in (1, 2, 3):
        for a, b in zip(
            gradients(plain, noise(16, 8, seed=seed)), gradients(ours, noise(16, 8, seed=seed)), strict=True
        ):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def gelu(x):
    """Named as Keras's own, which writes it into the configuration by that name alone."""
    return x * 1.5


def towers(make):
    def build():
        x = inputs = keras.Input((8,))
        for i in range(3):
            x = L.Dense(8)(make(i)(x))
        return keras.Model(inputs, L.Dense(4)(x))

    return build


def adapted(i):
    layer = L.Normalization()
    layer.adapt(np.random.default_rng(i).normal(i, i + 1, (64, 8)))
    return layer


def patched(i):
    layer = L.ReLU()
    layer.call = [lambda x: x * 1.0, lambda x: x * 2.0, lambda x: x * 3.0][i]
    return layer


ALIKE = {
    "adapted": adapted,
    "named as Keras's": lambda i: L.Dense(8, activation=[gelu, "gelu", gelu][i]),
    "patched": patched,
}


@pytest.mark.parametrize("make", ALIKE.values(), ids=ALIKE)
def test_what_only_looks_alike_is_no_twin(make):
    expected = train(fresh(towers(make)), X, Y, graph=True, lr=0.01)
    model = fresh(towers(make))
    plan = by_block(model, 2)
    assert kinds(model, plan) == len(plan.segments)
    tfgc.enable(model, plan)
    assert_equal(expected, train(model, X, Y, lr=0.01), exact=False)


@pytest.mark.parametrize("mode", MODES)
def test_a_twin_that_was_changed_after_enabling_is_looked_at_by_itself(mode):
    build = towers(lambda i: L.Dense(8, name=f"wide_{i}"))

    def changed(enable):
        model = fresh(build)
        if enable:
            tfgc.enable(model, by_block(model, 2), compile_segments=mode == "compiled")
        model.get_layer("wide_2").enable_lora(4)
        model.get_layer("wide_1").activation = keras.activations.tanh
        keras.utils.set_random_seed(5)
        for v in model.get_layer("wide_2").trainable_variables:
            v.assign(keras.random.normal(v.shape, seed=3) * 0.1)
        return model

    expected = train(changed(False), X, Y, graph=mode != "eager", lr=0.01)
    ours = train(changed(True), X, Y, graph=mode == "graph", lr=0.01)
    assert any("lora" in name for name in expected[0].gradients)
    assert_equal(expected, ours, exact=mode == "eager")


def test_a_loss_that_depends_on_the_shape_is_there_in_each_call():
    class Sometimes(L.Layer):
        def call(self, x):
            if x.shape[0] == 16:
                self.add_loss(keras.ops.mean(x**2))
            return x * 2.0

    layers = [L.Dense(8), Sometimes(), L.Dense(8), L.Dense(4)]
    model = keras.Sequential([keras.Input((8,)), *layers])
    tfgc.enable(model, tfgc.plan(model, strategy="uniform", segments=2))
    counts = []
    for rows in (16, 8, 16, 8):
        y = model(noise(rows, 8), training=True)
        assert y.shape == (rows, 4)
        counts.append(len(model.losses))
    assert counts == [1, 0, 1, 0]


def test_a_cell_with_dropout_is_refused_and_its_rnn_is_not():
    inputs = keras.Input((5, 4))
    model = keras.Model(inputs, L.Dense(4)(L.LSTM(6, dropout=0.3, name="rnn")(inputs)))
    with pytest.raises(tfgc.OptionError, match="name the RNN"):
        tfgc.enable(model, layers=["lstm_cell"])
    assert tfgc.verify(model, None, noise(8, 5, 4), layers=["rnn"], modes=MODES)


def test_verify_tells_each_of_two_layers_of_one_name_and_forgives_nests():
    draws = np.random.default_rng(0)

    class Restless(L.Layer):
        def call(self, x):
            return x * draws.uniform()

    def tower(name, middle):
        return keras.Sequential([keras.Input((8,)), L.Dense(8), middle, L.Dense(8)], name=name)

    inputs = keras.Input((8,))
    x = tower("b", L.Dropout(0.2, name="noise"))(tower("a", Restless(name="noise"))(inputs))
    model = keras.Model(inputs, L.Dense(4)(x))
    verdict = tfgc.verify(model, None, X, modes="graph", steps=1)
    assert len(verdict.unrepeatable) == 1
    inputs = keras.Input((8,))
    model = keras.Model(inputs, L.Dense(4)(tower("c", L.Dropout(0.2, name="inner"))(inputs)))
    assert tfgc.verify(model, None, X, layers=["c", "inner"], modes="graph", steps=1).kept == {}
