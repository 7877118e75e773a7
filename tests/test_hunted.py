"""Defects that a hunt for wrong gradients found, each kept as a test."""

import dataclasses
import gc
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf
from equality import MODES, assert_equal, fresh, mostly, noise, train

import tfgc

L = keras.layers
X, Y = noise(16, 8), [noise(16, 4, seed=2)]
BOTH = pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])


@dataclasses.dataclass
class Config:
    scale: float


@pytest.mark.parametrize("wrap", [lambda v: v, lambda v: np.float32([v]), Config], ids=["number", "array", "object"])
def test_arguments_that_are_no_tensors_are_those_of_this_call(wrap):
    fn = tfgc.recompute(lambda x, a: x * getattr(a, "scale", a))
    for value in (2.0, 3.0, 2.0):
        with tf.GradientTape() as tape:
            tape.watch(X)
            y = fn(X, wrap(value))
        np.testing.assert_allclose(tape.gradient(y, X), tf.fill(X.shape, value))


def test_arguments_are_not_kept_alive():
    class Big:
        scale = 1.0

    fn = tfgc.recompute(lambda x, a: x * a.scale)
    objects = [Big() for _ in range(5)]
    alive = [weakref.ref(o) for o in objects]
    for o in objects:
        fn(X, o)
    del o, objects
    gc.collect()
    assert not any(ref() for ref in alive)


class Inner(keras.layers.Layer):
    """Its call is a `tf.function`, traced for the first time by whoever comes first."""

    def __init__(self):
        super().__init__()
        self.dense, self.dropout, self.norm = L.Dense(8), L.Dropout(0.5), L.BatchNormalization(momentum=0.5)

    def build(self, shape):
        self.dense.build(shape)
        self.norm.build((None, 8))

    @tf.function
    def call(self, x, training=None):
        return self.norm(self.dropout(self.dense(x), training=training), training=training)


@pytest.mark.parametrize("mode", mostly("graph"))
def test_a_function_inside_a_layer_is_not_spoilt_by_being_traced_here_first(mode):
    def run(enabled):
        model = fresh(lambda: keras.Sequential([keras.Input((8,)), Inner(), L.Dense(8), Inner(), L.Dense(4)]))
        if enabled:
            tfgc.enable(model, strategy="uniform", compile_segments=mode == "compiled")
        ours = train(model, X, Y, graph=mode == "graph" or not enabled)
        tfgc.disable(model)
        return ours + train(model, X, Y, graph=False)

    assert_equal(run(False), run(True), exact=False)


def test_a_variable_read_through_keras_and_past_it_gets_both_gradients():
    layer = L.Dense(8)
    layer.build((None, 8))
    raw = layer.kernel.value
    fn = lambda x: layer(x) @ raw

    def gradient(call):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(call(X) ** 2)
        return tape.gradient(loss, raw)

    np.testing.assert_allclose(gradient(fn), gradient(tfgc.recompute(fn)), rtol=1e-5, atol=1e-4)


@BOTH
def test_tensor_arrays_are_kept_with_a_warning(graph):
    def run(call):
        def step():
            with tf.GradientTape() as tape:
                tape.watch(X)
                array = call(tf.TensorArray("float32", 16), X)
                loss = tf.reduce_sum(array.stack() ** 2)
            return tape.gradient(loss, X)

        return (tf.function(step) if graph else step)()

    fn = lambda array, x: array.unstack(tf.sin(x))
    with pytest.warns(tfgc.NotReplayableWarning, match="TensorArray"):
        ours = run(tfgc.recompute(fn))
    np.testing.assert_array_equal(run(fn), ours)


class Branching(keras.layers.Layer):
    """Draws inside of `tf.cond`."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dropout = L.Dropout(0.5)

    def call(self, x, training=None):
        return tf.cond(tf.reduce_sum(x) > -1e9, lambda: self.dropout(x, training=training), lambda: x)


@pytest.mark.parametrize("mode", MODES)
def test_state_written_inside_of_a_branch_is_kept_with_a_warning(mode):
    def run(enabled):
        model = fresh(
            lambda: keras.Sequential([keras.Input((8,)), Branching(name="branching"), L.Dense(8), L.Dense(4)])
        )
        if enabled:
            tfgc.enable(model, strategy="uniform", compile_segments=mode == "compiled")
        return train(model, X, Y, graph=mode == "graph" or (mode == "compiled" and not enabled))

    plain = run(False)
    with pytest.warns(tfgc.NotReplayableWarning, match="branching"):
        ours = run(True)
    assert_equal(plain, ours, exact=mode == "eager")


def test_recompute_in_a_branch_on_an_eager_tensor():
    fn = tfgc.recompute(tf.tanh)

    @tf.function
    def step(call):
        with tf.GradientTape() as tape:
            tape.watch(X)
            y = tf.cond(tf.reduce_sum(X) > -1e9, lambda: call(X), lambda: X)
        return tape.gradient(y, X)

    np.testing.assert_array_equal(step(tf.tanh), step(fn))


@pytest.mark.parametrize("compiled", [False, True])
def test_freezing_a_normalization_is_seen_without_a_gradient_too(compiled):
    model = keras.Sequential([keras.Input((8,)), L.Dense(8), L.BatchNormalization(), L.Dense(8), L.Dense(4)])
    tfgc.enable(model, strategy="uniform", compile_segments=compiled)
    model(X, training=True)
    model.layers[1].trainable = False
    before = model.layers[1].moving_mean.numpy()
    y = model(X, training=True)
    np.testing.assert_array_equal(before, model.layers[1].moving_mean)
    tfgc.disable(model)
    np.testing.assert_allclose(y, model(X, training=True), rtol=1e-5, atol=1e-6)


def test_users_own_errors_come_through_and_are_forgotten():
    broken = [True]

    def fn(x):
        if broken[0]:
            raise NotImplementedError
        return tf.tanh(x)

    recomputed = tfgc.recompute(fn)
    with pytest.warns(tfgc.NotReplayableWarning), pytest.raises(NotImplementedError):
        recomputed(X)
    broken[0] = False
    with tf.GradientTape() as tape:
        tape.watch(X)
        y = recomputed(X)
    np.testing.assert_allclose(tape.gradient(y, X), 1 - y**2, rtol=1e-5, atol=1e-6)


def test_passing_tensors_keep_their_dtype_in_split_models():
    inputs = keras.Input((3,), dtype="float64")
    x = inputs
    for _ in range(3):
        x = L.Dense(6)(x)
    model = keras.Model(inputs, L.Dense(4, dtype="float64")(L.Concatenate(dtype="float64")([x, inputs])))
    y = tf.constant(np.random.default_rng(0).normal(size=(2, 3)))
    expected = model(y)
    for part in tfgc.split(model, 2):
        y = part(y)
    np.testing.assert_array_equal(expected, y)


def test_inlining_of_functions_ends_with_the_call():
    assert not tf.config.functions_run_eagerly()
    tfgc.recompute(tf.tanh)(X)
    assert not tf.config.functions_run_eagerly()


def test_another_shape_may_read_another_variable():
    """A compiled segment that is known by its arguments' ranks is traced again, and looked at again."""

    class Sized(keras.layers.Layer):
        def build(self, shape):
            self.large = self.add_weight(shape=(), initializer="ones", name="large")
            self.small = self.add_weight(shape=(), initializer="zeros", name="small")

        def call(self, x):
            return x * (self.large if x.shape[0] == 16 else self.small)

    def build():
        layers = [keras.layers.Dense(8), Sized(), keras.layers.Dense(8), keras.layers.Dense(4)]
        return keras.Sequential([keras.Input((8,)), *layers])

    def gradients(model, rows):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(noise(rows, 8), training=True) ** 2)
        return tape.gradient(loss, [v.value for v in model.trainable_variables])

    plain, ours = fresh(build), fresh(build)
    tfgc.enable(ours, tfgc.plan(ours, strategy="uniform", segments=2))
    for rows in (16, 16, 8):
        for a, b in zip(gradients(plain, rows), gradients(ours, rows), strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
