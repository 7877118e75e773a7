"""Gradients of variables that do not train, where a tape watches them: of frozen layers, and of plain variables."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from equality import fresh, in_turn, noise

import tfgc

L = keras.layers
X = noise(6, 8)


def frozen():
    model = keras.Sequential([keras.Input((8,)), *(L.Dense(8, activation="gelu") for _ in range(6))])
    model.layers[1].trainable = model.layers[4].trainable = False
    return model


def gradients(model, watched):
    with tf.GradientTape() as tape:
        tape.watch(watched)
        loss = tf.reduce_sum(tf.square(model(X, training=True)))
    return tape.gradient(loss, [*watched, *model.trainable_variables])


PLANS = {"optimal": {}, "uniform": {"segments": 3}, "keep_all": {}}
WAYS = {
    "eager loop": lambda f: f,
    "graph": tf.function,
    "XLA": lambda f: tf.function(f, jit_compile=True),
}


@pytest.mark.gate
@pytest.mark.parametrize(("name", "way"), in_turn(PLANS, WAYS))
def test_watched_variables_of_frozen_layers_have_the_plain_gradients(name, way):
    model = fresh(frozen)
    watched = [v.value for layer in (model.layers[1], model.layers[4]) for v in layer.variables]
    plain = gradients(model, watched)
    assert all(np.any(g) for g in plain)
    options = {"strategy": name, **PLANS[name]}
    tfgc.enable(model, tfgc.plan(model, len(X), **options))
    run = WAYS[way](lambda watched: gradients(model, watched))
    for some in ([], watched, watched[:1], []):  # The second asks for more than what the first compiled.
        expected = plain[: len(some)] + plain[len(watched) :]
        for found, each in zip(run(some), expected, strict=True):
            np.testing.assert_allclose(found, each, rtol=2e-5, atol=1e-6)


def test_frozen_variables_that_nobody_watches_cost_nothing():
    """Plain Keras computes them, since TensorFlow's tapes watch what is read."""
    model = fresh(frozen)
    tfgc.enable(model, tfgc.plan(model, len(X)))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(X, training=True))
    assert tape.gradient(loss, model.layers[1].kernel.value) is None


THAWED = {
    "layers": lambda model: {"layers": L.Dense},
    "uniform": lambda model: {"strategy": "uniform", "segments": 3},
    "optimal": lambda model: {"strategy": "optimal"},
    "op by op": lambda model: {"strategy": "uniform", "segments": 3, "compile_segments": False},
}


@pytest.mark.gate
@pytest.mark.parametrize(("how", "way"), in_turn(THAWED, WAYS))
def test_a_model_is_thawed_between_its_call_and_the_gradient(how, way):
    """As Keras's GauGAN example does: its discriminator, frozen for the generator's step, never trained again."""

    def run(enabled):
        model = fresh(lambda: keras.Sequential([keras.Input((8,)), *(L.Dense(8, "gelu") for _ in range(6))]))
        if enabled:
            tfgc.enable(model, **THAWED[how](model), verbose=0)
        weights = [v.value for v in model.trainable_variables]

        def step(frozen):
            model.trainable = not frozen
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.square(model(X, training=True)))
            model.trainable = True
            return tape.gradient(loss, weights)

        return [WAYS[way](lambda frozen=frozen: step(frozen))() for frozen in (False, True, False)]

    for plain, ours in zip(run(False), run(True), strict=True):
        for expected, found in zip(plain, ours, strict=True):
            np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-6)


def test_what_is_frozen_for_a_step_is_not_computed():
    """A generator's step, of which its discriminator passes gradients on alone."""
    model = fresh(frozen)
    for layer in model.layers:
        layer.trainable = True
    tfgc.enable(model, layers=L.Dense)
    for trains in (True, False):
        model.trainable = trains
        with tf.GradientTape() as tape:
            x = tf.constant(X)
            tape.watch(x)
            loss = tf.reduce_sum(model(x, training=True))
        of_x, of_kernel = tape.gradient(loss, [x, model.layers[1].kernel.value])
        assert np.any(of_x)
        assert (of_kernel is not None) == trains


@pytest.mark.parametrize("way", WAYS)
def test_watched_plain_variables_that_do_not_train_have_their_gradient(way):
    variable, x = tf.Variable([2.0, 3.0], trainable=False), tf.constant([1.0, 4.0])

    def step(function):
        with tf.GradientTape() as tape:
            tape.watch(variable)
            y = tf.reduce_sum(function(x))
        return tape.gradient(y, variable)

    def function(x):
        return tf.tanh(x * variable * 0.1)

    found = WAYS[way](lambda: step(tfgc.recompute(function)))()
    np.testing.assert_allclose(found, step(function), rtol=1e-6)


def test_what_trained_by_a_plan_that_changes_nothing_has_gradients_by_another():
    """As a discriminator that a small batch trained, where nothing was worth recomputing."""

    def run(enabled):
        model = fresh(lambda: keras.Sequential([keras.Input((64,)), *(L.Dense(64, "gelu") for _ in range(6))]))
        if enabled:
            tfgc.enable(model, verbose=0)
        weights, found = [v.value for v in model.trainable_variables], []
        for rows, is_frozen in ((1, False), (4096, True)):
            for layer in model.layers[3:]:
                layer.trainable = not is_frozen
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(noise(rows, 64), training=True)))
            for layer in model.layers[3:]:
                layer.trainable = True
            found.append(tape.gradient(loss, weights))
        if enabled:
            plans = [one.plan for one in tfgc.status(model).plans]
            assert sorted(any(s.mode == "recompute" for s in plan.segments) for plan in plans) == [False, True]
        return found

    with pytest.warns(tfgc.NothingSavedWarning):
        ours = run(True)
    for plain, mine in zip(run(False), ours, strict=True):
        for expected, found in zip(plain, mine, strict=True):
            np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("compiled", [False, True])
def test_what_trained_in_a_kept_segment_has_gradients_where_it_is_thawed(compiled):
    model = fresh(lambda: keras.Sequential([keras.Input((8,)), *(L.Dense(8, "gelu") for _ in range(6))]))
    weights = [v.value for v in model.trainable_variables]
    tfgc.enable(model, tfgc.plan(model, 6, strategy="keep_all"), compile_segments=compiled)
    for trains in (True, False):
        model.trainable = trains
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(model(X, training=True)))
        model.trainable = True
        assert all(g is not None for g in tape.gradient(loss, weights))


class Pair(L.Layer):
    def __init__(self):
        super().__init__()
        self.first, self.second = L.Dense(64, "gelu"), L.Dense(64, "gelu")

    def call(self, x):
        return self.second(self.first(x))


class Pairs(keras.Model):
    def __init__(self):
        super().__init__()
        self.pairs = [Pair() for _ in range(4)]

    def call(self, x):
        for pair in self.pairs:
            x = pair(x)
        return x


def test_parts_of_a_subclassed_model_are_thawed_between_its_call_and_the_gradient():
    """Each state in which it trains has a plan by calls of its own."""
    x, model = noise(256, 64), fresh(Pairs)
    model(x)
    tfgc.enable(model, verbose=0)
    weights = [v.value for v in model.trainable_variables]
    for is_frozen in (False, True, False):
        for pair in model.pairs[2:]:
            pair.trainable = not is_frozen
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(x, training=True) ** 2)
        for pair in model.pairs[2:]:
            pair.trainable = True
        assert all(g is not None for g in tape.gradient(loss, weights))
