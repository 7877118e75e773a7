"""What is called inside the segments of an enabled model: arguments, None and sparse gradients, tapes, batch sizes.

Closed-over tensors cannot occur between the nodes of a functional graph: what crosses a cut is an argument. They are
tested on functions.
"""

import dataclasses
import itertools

import keras
import models
import numpy as np
import pytest
import tensorflow as tf
from equality import MODES, assert_equal, check_enabled, fresh, in_pieces, in_turn, mostly, noise, train

import tfgc

L = keras.layers
X, Y = noise(16, 8), [noise(16, 4, seed=2)]


@pytest.mark.filterwarnings("ignore:(?s).*does not support masking:UserWarning")  # older Keras, of its own attention
@pytest.mark.parametrize(("build", "mode"), in_turn(models.CALLS, first=1))
def test_enabled_model_trains_as_the_plain_one(build, mode):
    check_enabled(build, models.inputs_of(build), Y, mode, segments=4)


TOKENS = np.random.default_rng(0).integers(0, 3, (8, 12)).astype("int32")


class Attending(L.Layer):
    """A block of the user's that calls attention on its input as it is, and is told of no mask behind it."""

    supports_masking = True

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.attention, self.norm = L.MultiHeadAttention(2, 4), L.LayerNormalization()

    def call(self, x):
        return self.norm(x + self.attention(x, x))


def masked(block):
    """Attention takes the mask off the tensors that it is called on, so that what reads them later has none."""

    def build():
        x = L.Embedding(5, 8, mask_zero=True)(inputs := keras.Input((12,), dtype="int32"))
        for i in range(3):
            made = block(i)(x, x) if block is attention else block(name=f"block_{i}")(x)
            x = L.Dense(8, activation="tanh")(L.Add()([x, made]))
        return keras.Model(inputs, L.Dense(4)(L.GlobalAveragePooling1D()(x)))

    return build


def attention(i):
    return L.MultiHeadAttention(2, 4, name=f"attention_{i}")


@pytest.mark.gate
@pytest.mark.filterwarnings("ignore:(?s).*does not support masking:UserWarning")
@pytest.mark.parametrize(("case", "mode"), in_turn([*itertools.product([attention, Attending], [2, 3, 5])]))
def test_what_attention_takes_masks_off_has_none_in_other_segments(case, mode):
    """Residual connections kept the mask: another loss, without a word."""
    block, segments = case
    rounding = 0.0 if mode == "eager" else 1e-4  # gradients of keys are small
    check_enabled(masked(block), TOKENS, [noise(8, 4)], mode, segments=segments, allowed=rounding)


@pytest.mark.gate
@pytest.mark.parametrize("mode", mostly("compiled"))
@pytest.mark.filterwarnings("ignore:(?s).*does not support masking:UserWarning")
def test_what_attention_takes_masks_off_has_none_in_nested_replays(mode):
    build = masked(attention)
    plain = train(fresh(build), TOKENS, [noise(8, 4)], graph=True)
    model = fresh(build)
    plan = in_pieces(model, TOKENS, 4)
    outer = tuple(name for segment in plan.segments[:2] for name in segment.nodes)
    inner = tfgc.Plan(plan.segments[:2], "by hand", ())
    tfgc.enable(model, dataclasses.replace(plan, segments=(tfgc.Segment(outer, inner=inner), *plan.segments[2:])))
    ours = train(model, TOKENS, [noise(8, 4)], graph=mode == "graph")
    assert_equal(plain, ours, exact=mode == "eager", allowed=0.0 if mode == "eager" else 1e-4)


@pytest.mark.parametrize("mode", mostly("graph"))
def test_a_recomputed_function_takes_off_the_masks_that_it_takes_off_plainly(mode):
    embedding, layer = L.Embedding(5, 8, mask_zero=True), L.MultiHeadAttention(2, 4)

    def masks(run):
        x = embedding(TOKENS)
        run(x)
        return getattr(x, "_keras_mask", None)

    def both():
        plain, ours = masks(lambda x: layer(x, x)), masks(tfgc.recompute(lambda x: layer(x, x)))
        assert plain is None
        assert ours is None

    (both if mode == "eager" else tf.function(both))()


class LogOfSum(L.Layer):
    """Has an infinite derivative where all is zero."""

    def call(self, x):
        return keras.ops.log(keras.ops.sum(x**2, -1))


def two_outputs():
    x = inputs = keras.Input((8,))
    for _ in range(4):
        x = L.Dense(8, activation="tanh", use_bias=False)(x)
    return keras.Model(inputs, {"used": L.Dense(1)(x), "unused": LogOfSum()(x)})


@pytest.mark.parametrize("mode", [*MODES, pytest.param("xla", marks=pytest.mark.gate)])
def test_an_output_that_the_loss_does_not_use_has_no_gradient(mode):
    """One of zero would be NaN behind an infinite derivative, as it is for a sample of zeros."""
    x, made = tf.concat([X[:8], tf.zeros((8, 8))], 0), []
    for enabled in (False, True):
        model = fresh(two_outputs)
        if enabled:
            tfgc.enable(model, in_pieces(model, x), verbose=0)

        def step(model=model):
            with tf.GradientTape(persistent=True) as tape:
                outputs = model(x, training=True)
                loss = tf.reduce_mean(outputs["used"] ** 2)
            weights = [v.value for v in model.trainable_variables]
            return tape.gradient(loss, weights), tape.gradient(loss, weights)

        graph = mode in ("graph", "xla")
        made.append(tf.function(step, jit_compile=mode == "xla" or None)() if graph else step())
    for plain, *ours in zip(made[0][0], *made[1]):
        for gradient in ours:
            np.testing.assert_allclose(gradient, plain, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("mode", mostly("eager"))
def test_gradients_that_are_none_or_sparse_stay_so(mode):
    model = fresh(models.half_used)
    tfgc.enable(model, strategy="uniform")
    steps = train(model, X, Y, graph=mode == "graph")
    assert [name for name, g in steps[-1].gradients.items() if g is None] == ["half_used/unused", "half_used_1/unused"]
    model = fresh(models.embeddings)
    tfgc.enable(model, strategy="uniform")
    steps = train(model, models.WORDS, Y, graph=mode == "graph")
    assert sum(isinstance(g, tuple) for g in steps[-1].gradients.values()) == 2


@pytest.mark.parametrize("mode", mostly("graph"))
def test_gradient_penalty_through_an_enabled_model(mode):
    def steps(enabled):
        model = fresh(lambda: keras.Sequential([keras.Input((8,)), *(L.Dense(8, activation="tanh") for _ in range(4))]))
        if enabled:
            tfgc.enable(model, strategy="uniform")
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(model.trainable_variables)

        def step(x):
            with tf.GradientTape() as outer:
                with tf.GradientTape() as inner:
                    inner.watch(x)
                    y = tf.reduce_sum(model(x, training=True))
                loss = y + tf.reduce_sum(inner.gradient(y, x) ** 2)
            gradients = outer.gradient(loss, [v.value for v in model.trainable_variables])
            optimizer.apply_gradients(zip(gradients, model.trainable_variables))
            return gradients

        if mode == "graph" or (mode == "compiled" and not enabled):
            step = tf.function(step)
        return [[g.numpy() for g in step(X)] for _ in range(3)]

    for plain, ours in zip(steps(False), steps(True)):
        for g0, g in zip(plain, ours, strict=True):
            np.testing.assert_allclose(g, g0, rtol=1e-4, atol=1e-4 * np.abs(g0).max())


@pytest.mark.parametrize("mode", mostly("eager"))
def test_persistent_tape_gives_the_same_gradients_again(mode):
    model = fresh(lambda: keras.Sequential([keras.Input((8,)), L.Dense(8), L.Dropout(0.5), L.Dense(8), L.Dense(4)]))
    tfgc.enable(model, strategy="uniform")
    sources = [v.value for v in model.trainable_variables]

    def step(x):
        with tf.GradientTape(persistent=True) as tape:
            y = model(x, training=True)
            loss = tf.reduce_sum(y**2)
        return tape.gradient(loss, sources), tape.gradient(loss, sources), tape.gradient(y, sources)

    step = tf.function(step) if mode == "graph" else step
    for _ in range(3):
        first, again, other = step(X)
        for a, b in zip(first, again, strict=True):
            np.testing.assert_array_equal(a, b)
        assert not np.array_equal(first[0], other[0])


@pytest.mark.parametrize("mode", mostly("graph"))
def test_freezing_and_thawing_between_steps(mode):
    """One traced step sees what was trainable when it was traced, as in Keras; eager steps see it at once."""

    def steps(enabled):
        model = fresh(lambda: keras.Sequential([keras.Input((8,)), *(L.Dense(8) for _ in range(3)), L.Dense(4)]))
        if enabled:
            tfgc.enable(model, strategy="uniform")
        record = []
        for frozen in (0, 2, 1, 0):
            for i, layer in enumerate(model.layers):
                layer.trainable = i >= frozen
            graph = mode == "graph" or (mode == "compiled" and not enabled)
            record += train(model, X, Y, graph=graph, steps=2)
        return record

    assert_equal(steps(False), steps(True), exact=mode == "eager")


@pytest.mark.parametrize("mode", mostly("compiled"))
def test_batches_of_any_size_in_one_traced_step(mode):
    """The batch is unknown when the step is traced; the last one is smaller, one is empty."""

    def results(enabled):
        model = fresh(
            lambda: keras.Sequential(
                [keras.Input((8,)), L.Dense(8), L.Dropout(0.5), L.Dense(8, activity_regularizer="l2"), L.Dense(4)]
            )
        )
        if enabled:
            tfgc.enable(model, strategy="uniform")

        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(model(x, training=True) ** 2) + tf.add_n(model.losses)
            return tape.gradient(loss, [v.value for v in model.trainable_variables])

        if mode == "graph" or (mode == "compiled" and not enabled):
            step = tf.function(step, input_signature=[tf.TensorSpec([None, 8])])
        return [step(noise(n, 8)) for n in (8, 8, 3, 0, 16)]

    for plain, ours in zip(results(False), results(True)):
        for g0, g in zip(plain, ours, strict=True):
            if mode == "eager":
                np.testing.assert_array_equal(g0, g)
            else:
                np.testing.assert_allclose(g0, g, rtol=1e-5, atol=1e-6 * max(1.0, np.abs(g0).max()))


def test_another_shape_may_read_another_variable():
    """A compiled segment that is known by its arguments' ranks is traced again, and looked at again."""

    class Sized(keras.layers.Layer):
        def build(self, shape):
            self.large = self.add_weight(shape=(), initializer="ones", name="large")
            self.small = self.add_weight(shape=(), initializer="zeros", name="small")

        def call(self, x):
            return x * (self.large if x.shape[0] == 16 else self.small)

    def build():
        layers = [L.Dense(8), Sized(), L.Dense(8), L.Dense(4)]
        return keras.Sequential([keras.Input((8,)), *layers])

    def gradients(model, rows):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(noise(rows, 8), training=True) ** 2)
        return tape.gradient(loss, [v.value for v in model.trainable_variables])

    plain, ours = fresh(build), fresh(build)
    tfgc.enable(ours, in_pieces(ours, X), verbose=0)
    for rows in (16, 16, 8):
        for a, b in zip(gradients(plain, rows), gradients(ours, rows), strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
