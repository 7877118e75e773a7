"""Layers with randomness, state, masks, losses and dtypes.

Each model of `models.STATEFUL` is trained for two steps plainly and by tfgc: as segments of an enabled model, and as
one recomputed function.
"""

import keras
import models
import numpy as np
import pytest
import tensorflow as tf
from equality import assert_equal, check_enabled, check_recomputed, fresh, in_turn, mostly, noise, train, worst
from models import TOKENS, X, Y

import tfgc

L = keras.layers
UNDER_XLA = [models.dropout, models.auxiliary_losses, models.convolution_bias_before_normalization]


@pytest.mark.parametrize(("build", "mode"), in_turn(models.STATEFUL, first=1))
def test_enabled_model_trains_as_the_plain_one(build, mode):
    allowed = models.ROUNDING.get(build, 0.0) if mode == "eager" else 0.0
    check_enabled(build, models.inputs_of(build), Y, mode, segments=3, allowed=allowed)


@pytest.mark.parametrize("mode", mostly("compiled"))
def test_plain_tf_variables_in_an_enabled_model(mode):
    def run(enabled):
        variables = [tf.Variable(2.0, name="first"), tf.Variable(0.5, name="last")]
        model = fresh(
            lambda: keras.Sequential(
                [
                    keras.Input((8,)),
                    L.Dense(8),
                    models.PlainVariable(variables[0]),
                    L.Dense(8),
                    L.Dense(4),
                    models.PlainVariable(variables[1]),
                ]
            )
        )
        if enabled:
            plan = tfgc.plan(model, strategy="uniform", segments=2)
            tfgc.enable(model, plan)
        graph = mode == "graph" or not enabled
        return train(model, X, Y, graph=graph, extra=variables)

    plain, ours = run(False), run(True)
    assert plain[0].gradients["first:0"] is not None
    assert_equal(plain, ours, exact=mode == "eager")


@pytest.mark.parametrize(("build", "mode"), in_turn(models.STATEFUL, ("graph", "eager")))
def test_recomputed_model_trains_as_the_plain_one(build, mode):
    # Of the gradients by three of its results plain code makes one sum, and the tape another.
    allowed = 4 * 3 * 1.2e-7 if mode == "eager" and build is models.losses_on_one_tensor else 0.0
    check_recomputed(build, models.inputs_of(build), Y, mode, allowed=allowed)


@pytest.mark.gate
@pytest.mark.parametrize(
    "build", [pytest.param(build, marks=[] if build in UNDER_XLA else pytest.mark.slow) for build in models.STATEFUL]
)
def test_jit_compiled_step_trains_as_the_plain_one(build):
    """XLA against XLA, judged as graph against graph."""
    x = models.inputs_of(build)
    plain = train(fresh(build), x, Y, graph=True, jit_compile=True)
    model = fresh(build)
    tfgc.enable(model, tfgc.plan(model, strategy="uniform", segments=3))
    ours = train(model, x, Y, graph=True, jit_compile=True)
    if build is models.convolution_bias_before_normalization:
        # The true gradient of such a bias is zero: the sum of the cotangents that its kernel's gradient weighs.
        # Rounding is all that is left, more or less by the CPU that XLA compiles for: it is judged by the kernel's.
        for name in [name for name in plain[0].gradients if "conv2d" in name and name.endswith("bias")]:
            for a, b in zip(plain, ours):
                kernel = np.linalg.norm(a.gradients[name.replace("bias", "kernel")])
                assert np.linalg.norm(a.gradients[name]) <= 1e-5 * kernel
                assert np.linalg.norm(a.gradients.pop(name) - b.gradients.pop(name)) <= 1e-5 * kernel
    assert_equal(plain, ours, exact=False)


@pytest.mark.parametrize(("policy", "mode"), in_turn(["mixed_float16", "mixed_bfloat16", "float64"]))
def test_autocast_scope_is_seen_by_the_replay(policy, mode):
    keras.config.set_dtype_policy(policy)
    check_enabled(models.dropout, X, Y, mode, segments=3, policy=policy)
    if mode != "compiled":
        check_recomputed(models.dropout, X, Y, mode, policy=policy)


@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_autocast_of_a_layer_recomputed_inside_another(mode):
    """The scope is set by the outer layer's `__call__`, long over when gradients are taken."""
    keras.config.set_dtype_policy("mixed_float16")

    class Outer(keras.layers.Layer):
        def __init__(self, wrapper):
            super().__init__()
            self.kernel = self.add_weight(shape=(8, 8), name="kernel", initializer="glorot_uniform")
            self.drop = L.Dropout(0.5)
            self.inner = wrapper(lambda x: self.drop(keras.ops.tanh(x @ self.kernel)))

        def call(self, x):
            return self.inner(x)

    def build(wrapper):
        return lambda: keras.Sequential([keras.Input((8,)), Outer(wrapper), Outer(wrapper), L.Dense(4)])

    graph = mode == "graph"
    plain = train(fresh(build(lambda f: f)), X, Y, graph=graph)
    ours = train(fresh(build(tfgc.recompute)), X, Y, graph=graph)
    assert worst(plain, ours) <= (5e-3 if graph else 0)
    assert [s.loss for s in plain] == [s.loss for s in ours]


def test_freezing_a_normalization_is_seen_without_a_gradient_too():
    model = keras.Sequential([keras.Input((8,)), L.Dense(8), L.BatchNormalization(), L.Dense(8), L.Dense(4)])
    tfgc.enable(model, strategy="uniform")
    model(X, training=True)
    model.layers[1].trainable = False
    before = model.layers[1].moving_mean.numpy()
    y = model(X, training=True)
    np.testing.assert_array_equal(before, model.layers[1].moving_mean)
    tfgc.disable(model)
    np.testing.assert_allclose(y, model(X, training=True), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mode", mostly("compiled"))
def test_model_losses_after_the_call_are_the_plain_ones(mode):
    plain, ours = fresh(models.auxiliary_losses), fresh(models.auxiliary_losses)
    tfgc.enable(ours, strategy="uniform")

    def values(model):
        model(X, training=True)
        return [list(model.losses)] + [list(layer.losses) for layer in model.layers]

    run = tf.function(values) if mode == "graph" else values
    reference = tf.function(values) if mode == "graph" else values
    expected, found = reference(plain), run(ours)
    assert [len(v) for v in found] == [len(v) for v in expected]
    for a, b in zip(tf.nest.flatten(expected), tf.nest.flatten(found)):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=0 if mode == "eager" else 1e-6)


def test_losses_are_still_there_after_the_backward_pass():
    model = fresh(models.auxiliary_losses)
    call = tfgc.recompute(model)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(call(X, training=True)) + sum(model.losses)
    before = [float(loss) for loss in model.losses]
    assert len(before) == 6
    tape.gradient(loss, [v.value for v in model.trainable_variables])
    assert [float(loss) for loss in model.losses] == before


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


def test_mask_reaches_a_recomputed_layer_and_leaves_it():
    embedding, lstm = L.Embedding(20, 8, mask_zero=True), L.LSTM(8, return_sequences=True)
    x = embedding(TOKENS)
    plain, ours = lstm(x), tfgc.recompute(lstm)(x)
    np.testing.assert_array_equal(plain, ours)
    np.testing.assert_array_equal(plain._keras_mask, ours._keras_mask)


def test_mask_crosses_cuts_to_the_model_output():
    """`model.fit` weighs the loss by the mask that the outputs carry."""

    def build():
        inputs = keras.Input((6,), dtype="int32")
        x = L.Embedding(20, 8, mask_zero=True)(inputs)
        x = L.Dropout(0.2)(x)
        x = L.Dense(8)(x)
        return keras.Model(inputs, L.Dense(4)(L.Dropout(0.1)(x)))

    plain, ours = fresh(build), fresh(build)
    tfgc.enable(ours, strategy="uniform")
    np.testing.assert_array_equal(plain(TOKENS)._keras_mask, ours(TOKENS)._keras_mask)


@pytest.mark.parametrize("training", [None, True, False])
def test_training_argument_is_passed_on_and_none_stays_none(training):
    seen = []

    class Spy(keras.layers.Layer):
        def call(self, x, training=None):
            seen.append(training)
            return x * 1.0

    model = keras.Sequential([keras.Input((8,)), L.Dense(8), Spy(), L.Dense(8), L.Dense(4)])
    tfgc.enable(model, tfgc.plan(model, strategy="uniform"))
    seen.clear()
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(X, training=training))
    tape.gradient(loss, [v.value for v in model.trainable_variables])
    assert set(seen) == {training}


class Centred(keras.layers.Layer):
    """Reads what it has just written."""

    def build(self, shape):
        self.mean = self.add_weight(shape=(shape[-1],), initializer="zeros", trainable=False, name="mean")

    def call(self, x):
        self.mean.assign(0.9 * self.mean + 0.1 * keras.ops.mean(keras.ops.stop_gradient(x), 0))
        return x - self.mean


def test_a_state_is_read_before_the_next_call_writes_it():
    """Grappler dropped that order where a segment between both calls works on the result of the first one, too."""

    def build():
        layers, (a, b), centred = keras.layers, (keras.Input((6,)), keras.Input((6,))), Centred(name="centred")
        left = layers.Dense(6, "tanh", name="left")(centred(layers.Dense(6, name="first")(a)))
        right = centred(layers.Dense(6, "tanh", name="right")(b))
        return keras.Model([a, b], layers.Concatenate(name="both")([left, right]))

    model, batch = fresh(build), (noise(8, 6), noise(8, 6, seed=2))
    plan = tfgc.plan(model, strategy="uniform", segments=5)
    step = tfgc.train_step(model, "mse", keras.optimizers.SGD(0.0), plan=plan)
    plain = fresh(build)
    plain.compile(keras.optimizers.SGD(0.0), "mse")
    for _ in range(5):
        expected = plain.train_on_batch(batch, noise(8, 12, seed=3))
        plain.reset_metrics()
        assert float(step(batch, noise(8, 12, seed=3))["loss"]) == pytest.approx(float(expected), rel=1e-6)


class Remembers(keras.layers.Layer):
    """Keeps the kernel of the step before, assigned as a variable."""

    def build(self, shape):
        self.dense = L.Dense(shape[-1], activation="tanh")
        self.dense.build(shape)
        self.before = self.add_weight(shape=self.dense.kernel.shape, trainable=False, name="before")

    def call(self, x):
        y = self.dense(x) + x @ keras.ops.convert_to_tensor(self.before)
        self.before.assign(self.dense.kernel)
        return y


@pytest.mark.parametrize("mode", mostly("graph"))
def test_a_variable_is_assigned_to_another_one(mode):
    def build():
        return keras.Sequential([keras.Input((8,)), *(Remembers() for _ in range(4))])

    check_enabled(build, X, [noise(X.shape[0], 8, seed=2)], mode, segments=2)
