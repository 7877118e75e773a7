"""Segments that run in slices of the batch: the same gradients in a share of the memory."""

import contextlib
import dataclasses
import functools
import itertools
import os
import pathlib
import re
import subprocess
import sys

import keras
import memory
import numpy as np
import pytest
import tensorflow as tf
from equality import fresh, in_turn, mostly, noise
from models import DividedByMask, MayMix, of_length_one
from replays import second_order

import tfgc
from tfgc import strategies
from tfgc._core.buffers import Buffers
from tfgc._costs import node_costs
from tfgc._framework import slice_rows
from tfgc._pure import drawn_rows
from tfgc._simulate import sliced_events
from tfgc._tracing import keras_graph

L = keras.layers
ROOT = pathlib.Path(__file__).parents[1]
X, Y = noise(10, 8, 8, 2), noise(10, 3)


def convolutions():
    inputs = keras.Input((8, 8, 2))
    x = L.Conv2D(4, 3, activation="relu", padding="same")(inputs)
    y = L.Conv2D(4, 3, padding="same")(x)
    x = L.LayerNormalization()(L.Add()([x, y]))
    return keras.Model(inputs, L.Dense(3)(L.Flatten()(L.Conv2D(4, 3)(x))))


def normalized():
    layers = [L.Conv2D(2, 3), L.BatchNormalization(name="bn")]
    layers += [L.Conv2D(8, 3, padding="same", activation="relu") for _ in range(6)]
    return keras.Sequential([keras.Input((8, 8, 2)), *layers, L.Flatten(), L.Dense(3)])


class Scaled(L.Layer):
    """The user's own layer with Keras's random numbers, which is compared on noise."""

    def __init__(self):
        super().__init__()
        self.seed = keras.random.SeedGenerator(5)

    def call(self, x):
        return x * keras.random.uniform((tf.shape(x)[0], 1), seed=self.seed)


def noisy(normal=True):
    """Draws whose rows are, and are not, as many numbers as the generator makes at a time; one seed for two draws."""
    inputs = keras.Input((8, 8, 2))
    twice = L.Dropout(0.4)
    x = twice(L.Conv2D(5, 3)(inputs))
    x = L.SpatialDropout2D(0.3)(x)
    if normal:
        x = L.GaussianNoise(0.3)(x)
    x = twice(L.Conv2D(4, 3)(x))
    x = L.Dropout(0.3, noise_shape=(None, 1, 1, 4))(x)
    x = L.Dense(3)(L.Flatten()(x))
    return keras.Model(inputs, L.AlphaDropout(0.2)(Scaled()(x)))


def uniformly_noisy():
    return noisy(normal=False)


def words():
    inputs = keras.Input((5,), dtype="int32")
    return keras.Model(inputs, L.Dense(3)(L.Flatten()(L.Embedding(9, 4)(inputs))))


def sliced(model, slices, segments=2, **changes):
    plan = tfgc.plan(model, strategy="uniform", segments=segments)
    parts = [dataclasses.replace(s, mode="recompute", chunks=slices, **changes) for s in plan.segments]
    return dataclasses.replace(plan, segments=tuple(parts))


def gradients(model, mode, x=X, y=Y):
    """Of a loss over the whole batch, which no slice of it knows."""

    def step(x, y):
        with tf.GradientTape() as tape:
            tape.watch(x)
            made = model(x, training=True)
            loss = tf.reduce_mean((made - y) ** 2) * tf.norm(tf.matmul(made, made, transpose_b=True))
        sources = [x, *(v.value for v in model.trainable_variables)]
        found = tape.gradient(loss, sources)
        return loss, [None if g is None else tf.convert_to_tensor(g) for g in found]

    if mode == "graph":
        step = tf.function(step)
    elif mode == "XLA":
        step = tf.function(step, jit_compile=True)
    step(x, y)
    return step(x, y)


def check_equal(build, mode, slices, x=X, y=Y, rtol=1e-4):
    loss, expected = gradients(fresh(build), "XLA" if mode == "XLA" else "graph", x, y)
    model = fresh(build)
    tfgc.enable(model, sliced(model, slices))
    found_loss, found = gradients(model, mode, x, y)
    np.testing.assert_allclose(found_loss, loss, rtol=1e-6)
    for one, other in zip(expected, found, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            np.testing.assert_allclose(other, one, rtol=rtol, atol=rtol / 100 * float(tf.reduce_max(tf.abs(one))))


@pytest.mark.parametrize(
    ("mode", "slices"),
    [
        *in_turn(["eager", "compiled", "graph"], [2, 4, 16]),
        pytest.param("XLA", 4, marks=pytest.mark.gate),
        *(pytest.param("XLA", slices, marks=pytest.mark.slow) for slices in (2, 16)),
    ],
)
def test_gradients_are_those_of_the_whole_batch(mode, slices):
    check_equal(convolutions, mode, slices)


def two_heads():
    inputs = keras.Input((8,))
    x = L.Dense(3)(inputs)
    y = L.Dense(3)(x)
    return keras.Model(inputs, [L.Softmax()(x), L.Softmax()(y)])


def dense(dtype="float32"):
    """Weights that are larger than the rows of a batch: of two calls, for steps of a sequence, and with a penalty."""
    inputs = keras.Input((2, 64))
    shared = L.Dense(64, "tanh")
    x = shared(shared(L.Dense(64, "relu", dtype=dtype)(inputs)))
    x = L.Dense(160, "tanh", kernel_regularizer="l2")(L.Flatten()(x))
    return keras.Model(inputs, L.Dense(3, dtype="float32")(x))


@pytest.mark.parametrize(
    ("mode", "slices"),
    [
        ("eager", 2),
        *(("compiled", slices) for slices in (2, 3)),
        ("graph", 2),
        pytest.param("XLA", 2, marks=pytest.mark.gate),
        *(pytest.param(mode, 3, marks=pytest.mark.slow) for mode in ("eager", "graph", "XLA")),
    ],
)
def test_gradients_that_are_products_of_rows(mode, slices, monkeypatch):
    """They are made of all rows at once, if all slices are of one size."""
    made, product = [], slice_rows.product
    monkeypatch.setattr(slice_rows, "product", lambda *given: made.append(given) or product(*given))
    check_equal(dense, mode, slices, x=noise(8, 2, 64), y=noise(8, 3))
    assert bool(made) == (mode != "eager" and slices == 2)


def test_products_of_half_precision_rows_are_those_of_the_batch():
    """Gradients of biases are sums over slices, each rounded to ten bits."""
    build = functools.partial(dense, "mixed_float16")
    check_equal(build, "graph", 2, x=noise(8, 2, 64), y=noise(8, 3), rtol=1e-2)


def dense_peak(slices, mode):
    """The peak of a step of two large layers above what stays, in weights, and what is predicted."""
    model = keras.Sequential([keras.Input((1024,)), *(L.Dense(1024, "tanh") for _ in range(2)), L.Dense(1)])
    cuts = [(0, 2, slices), (2, 3, "keep")]
    plan = tfgc.plan(model, 16, strategy=lambda graph: tfgc.Plan.from_pieces(graph, cuts, strategy="by hand"))
    step = tfgc.train_step(model, "mse", "sgd", plan=plan, run_eagerly=mode == "compiled")
    predicted = tfgc.estimate(model, 16, plan, mode=mode, optimizer="sgd", loss="mse")
    of_a_weight = 4 * 1024**2
    peak = memory.peak(step, tf.ones((16, 1024)), tf.zeros((16, 1)))
    return peak / of_a_weight, (predicted.needed_bytes - predicted.fixed_bytes) / of_a_weight


@pytest.mark.gate
@pytest.mark.parametrize(("mode", "most"), [("graph", 2.5), ("compiled", 3.5)])
def test_products_of_rows_are_in_memory_once(mode, most):
    """In place of their sum and a slice's part; a compiled segment gives both, and one update needs as much."""
    peak, predicted = memory.alone(dense_peak, 4, mode)
    uneven, predicted_uneven = memory.alone(dense_peak, 6, mode)
    assert peak < most < uneven
    assert peak < predicted < predicted_uneven


def dense_fit_peak(examples):
    """The same as `dense_peak` in `fit` with batches of 16."""
    model = keras.Sequential([keras.Input((1024,)), *(L.Dense(1024, "tanh") for _ in range(2)), L.Dense(1)])
    cuts = [(0, 2, 4), (2, 3, "keep")]
    plan = tfgc.plan(model, 16, strategy=lambda graph: tfgc.Plan.from_pieces(graph, cuts, strategy="by hand"))
    predicted = tfgc.estimate(model, 16, plan, optimizer="sgd", loss="mse")
    tfgc.enable(model, plan)
    model.compile("sgd", "mse", jit_compile=False)
    x, y = np.ones((examples, 1024), "float32"), np.zeros((examples, 1), "float32")
    of_a_weight = 4 * 1024**2
    peak = memory.peak(lambda: model.fit(x, y, batch_size=16, verbose=0))
    return peak / of_a_weight, (predicted.needed_bytes - predicted.fixed_bytes) / of_a_weight


@pytest.mark.gate
def test_predictions_hold_in_fit_where_the_last_batch_is_smaller():
    """Keras traces its step for any batch then; products of rows are for one."""
    whole, predicted = memory.alone(dense_fit_peak, 32)
    open_batch, _ = memory.alone(dense_fit_peak, 40)
    assert whole < 2.5 < open_batch < predicted


@pytest.mark.parametrize(
    ("mode", "slices"),
    [
        *in_turn(["compiled", "graph"], [2, 5]),
        pytest.param("XLA", 2, marks=pytest.mark.gate),
        pytest.param("XLA", 5, marks=pytest.mark.slow),
    ],
)
def test_tensors_of_one_size_have_a_buffer_each(mode, slices):
    """Of buffers that are made of sizes alone, Grappler makes one."""
    x = noise(5, 8)
    targets = [np.array([0, 2, 1, 1, 0]), np.array([1, 1, 0, 2, 2])]

    def of(model, compiled):
        def step():
            with tf.GradientTape() as tape:
                made = model(x, training=True)
                loss = sum(
                    tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(t, m))
                    for t, m in zip(targets, made, strict=True)
                )
            return tape.gradient(loss, [v.value for v in model.trainable_variables])

        return (tf.function(step, jit_compile=mode == "XLA") if compiled else step)()

    model = fresh(two_heads)
    cut = [(0, 2, "keep"), (2, 4, slices)]
    plan = tfgc.plan(model, 5, strategy=lambda graph: tfgc.Plan.from_pieces(graph, cut, strategy="by hand"))
    tfgc.enable(model, plan)
    found = of(model, mode != "compiled")
    for one, other in zip(of(fresh(two_heads), True), found, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-6)


def two_products():
    inputs = [keras.Input((3,)), keras.Input((3,))]
    made = L.Dense(3)(inputs[0])
    return keras.Model(inputs, [made, *(L.Rescaling(2.0)(x) for x in inputs)])


def test_constant_gradients_have_a_buffer_each():
    """Of buffers that begin with equal constants, Grappler makes one."""
    x = [noise(6, 3), noise(6, 3)]
    weights = [np.outer([0, 0, 1, 2, 3, 4], np.ones(3, "float32")), np.outer([0, 0, 5, 6, 7, 8], np.ones(3, "float32"))]

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            _, *made = model(x, training=True)
            loss = tf.add_n([tf.reduce_sum(one * weight) for one, weight in zip(made, weights, strict=True)])
        return tape.gradient(loss, x)

    model = fresh(two_products)
    cut = [(0, 2, 3), (2, 3, "keep")]
    plan = tfgc.plan(model, 6, strategy=lambda graph: tfgc.Plan.from_pieces(graph, cut, strategy="by hand"))
    tfgc.enable(model, plan)
    for gradient, weight in zip(step(x), weights, strict=True):
        np.testing.assert_allclose(gradient, 2 * weight)


CLUSTERED = """
import keras, numpy as np, tensorflow as tf, tfgc

class Noisy(keras.layers.Layer):
    def build(self, shape):
        self.seed, self.scale = keras.random.SeedGenerator(3), self.add_weight(shape=(), initializer="ones")

    def call(self, x):
        return x * self.scale * keras.random.normal(keras.ops.shape(x), seed=self.seed)

inputs = keras.Input((64,))
x = keras.layers.Rescaling(2.0)(Noisy()(inputs))
model = keras.Model(inputs, keras.layers.Rescaling(3.0)(Noisy()(x)))
cut = [(0, 2, 3), (2, 4, 3)]
plan = tfgc.plan(model, 8, strategy=lambda graph: tfgc.Plan.from_pieces(graph, cut, strategy="by hand"))
tfgc.enable(model, plan)
x = tf.constant(np.random.default_rng(1).standard_normal((8, 64)), "float32")

@tf.function
def step():
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(model(x, training=True) * x)
    return total, tape.gradient(total, [v.value for v in model.trainable_variables])

total, gradients = step()
np.testing.assert_allclose(gradients, [total, total], rtol=1e-3)  # each factor is one
"""


@pytest.mark.gate
def test_both_runs_draw_alike_where_tensorflow_makes_clusters_for_xla():
    environment = {**os.environ, "TF_XLA_FLAGS": "--tf_xla_cpu_global_jit --tf_xla_auto_jit=2", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", CLUSTERED], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("mode", ["compiled", "graph", pytest.param("XLA", marks=pytest.mark.gate)])
def test_sparse_gradients_are_joined(mode):
    tokens = tf.constant(np.random.default_rng(3).integers(0, 9, (10, 5)), "int32")
    check_equal(words, mode, 4, tokens)


@pytest.mark.gate
@pytest.mark.parametrize(
    ("mode", "slices"),
    [
        ("compiled", 16),
        ("graph", 4),
        ("XLA", 3),
        pytest.param("eager", 4, marks=pytest.mark.slow),
    ],
)
def test_random_numbers_are_those_of_the_whole_batch(mode, slices):
    check_equal(uniformly_noisy if mode == "XLA" else noisy, mode, slices)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_rows_that_are_drawn_alone(dtype):
    for draw, row in itertools.product((tf.random.stateless_normal, tf.random.stateless_uniform), (1, 3, 8)):
        whole = draw((9, row), seed=[4, 5], dtype=dtype)
        with drawn_rows.rows_from(4):
            assert np.array_equal(draw((5, row), seed=[4, 5], dtype=dtype), whole[4:])


@pytest.mark.gate
@pytest.mark.parametrize("options", [{}, {"run_eagerly": True}], ids=["graph", "eager"])
def test_fit_with_a_last_batch_that_does_not_divide(options):
    weights = []
    for plan in (None, 4):
        model = fresh(noisy)
        if plan:
            tfgc.enable(model, sliced(model, plan))
        model.compile("sgd", "mse", jit_compile=False, **options)
        model.fit(X, Y, batch_size=7, epochs=2, shuffle=False, verbose=0)
        weights.append([v.numpy() for v in model.weights])
    for v, w in zip(*weights, strict=True):
        np.testing.assert_allclose(v, w, rtol=1e-4, atol=1e-6)


@pytest.mark.gate
def test_second_order_gradients_of_compiled_segments():
    def penalty(model):
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                inner.watch(X)
                made = tf.reduce_sum(model(X, training=True) ** 2)
            norm = tf.reduce_sum(inner.gradient(made, X) ** 2)
        return outer.gradient(norm, model.trainable_variables[0].value)

    expected = penalty(fresh(convolutions))
    model = fresh(convolutions)
    tfgc.enable(model, sliced(model, 5))
    np.testing.assert_allclose(penalty(model), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.gate
@pytest.mark.parametrize("way", ["in one graph", "of a function"])
def test_second_order_gradients_in_graphs(way):
    expected = second_order(fresh(convolutions), X, way)[0]
    model = fresh(convolutions)
    tfgc.enable(model, sliced(model, 5))
    np.testing.assert_allclose(second_order(model, X, way)[0], expected, rtol=1e-4, atol=1e-5)


def with_a_second_reader():
    inputs = keras.Input((8,))
    x = L.Dense(8, activation="tanh", name="below")(inputs)
    return keras.Model(inputs, L.Dense(2, name="head")(L.Multiply(name="product")([x, L.Activation("tanh")(x)])))


def test_second_order_gradients_of_what_goes_on_beside_a_sliced_segment():
    """TensorFlow's optimizer folded the size of a loop's first rows into that of all of them."""
    x, plain = noise(4, 8), fresh(with_a_second_reader)
    model = fresh(with_a_second_reader)
    segments = [tfgc.Segment(("below",), "keep"), tfgc.Segment(("activation",), chunks=2)]
    plan = tfgc.Plan((*segments, tfgc.Segment(("product", "head"), "keep")), "by hand", tfgc.plan(model).model)
    tfgc.enable(model, plan)
    for ours, expected in zip(
        second_order(model, x, "in one graph"), second_order(plain, x, "in one graph"), strict=True
    ):
        np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.gate
def test_a_graph_that_is_differentiated_inside_and_from_outside():
    def gradient_of_input(model):
        @tf.function
        def step(x):
            with tf.GradientTape() as tape:
                made = tf.reduce_sum(model(x, training=True) ** 2)
            return made, tape.gradient(made, model.trainable_variables[-1].value)

        with tf.GradientTape() as tape:
            tape.watch(X)
            made, _ = step(X)
        return tape.gradient(made, X)

    model = fresh(convolutions)
    tfgc.enable(model, sliced(model, 5))
    np.testing.assert_allclose(gradient_of_input(model), gradient_of_input(fresh(convolutions)), rtol=1e-4, atol=1e-5)


def test_plans_slice_what_draws_by_rows():
    plan = tfgc.plan(fresh(noisy), 64, strategy="optimal", slices=8)
    of = {name: segment.chunks for segment in plan.segments for name in segment.nodes}
    assert of["dropout"] == 8
    one_mask, _ = MISTAKES["one mask for all"]
    for build, slices in ((one_mask, 1), (with_layer(lambda: L.Dropout(0.5, name="drop")), 8)):
        plan = tfgc.plan(build(), 64, strategy="optimal", slices=8)
        assert {segment.chunks for segment in plan.segments if "drop" in segment.nodes} == {slices}


def test_plans_slice_what_allows_it():
    model = fresh(normalized)
    plan = tfgc.plan(model, 64, strategy="optimal", slices=8)
    assert plan.options["slices"] == 8
    of = {name: segment.chunks for segment in plan.segments for name in segment.nodes}
    assert of["bn"] == 1
    assert max(of.values()) == 8
    assert plan.outlook.peak_bytes < tfgc.plan(model, 64, strategy="optimal").outlook.peak_bytes
    assert tfgc.Plan.from_json(plan.to_json()) == plan
    assert "in 8 slices" in plan.explain()


def test_plans_do_not_slice_what_mixes_samples_in_its_gradient():
    blocks = [[L.Dense(64, activation="gelu"), L.Lambda(of_length_one), L.Dense(4)] for _ in range(3)]
    model = fresh(lambda: keras.Sequential([keras.Input((4,)), *itertools.chain(*blocks)]))
    plan = tfgc.plan(model, 8, strategy="optimal", slices=4)
    of = {name: segment.chunks for segment in plan.segments for name in segment.nodes}
    assert {of[layer.name] for layer in model.layers[1::3]} == {1}
    assert max(of.values()) == 4


def test_plans_do_not_slice_what_mixes_samples_by_a_mask():
    def masked():
        inputs = keras.Input((6,), dtype="int32")
        x = L.Embedding(9, 4, mask_zero=True)(inputs)
        y = DividedByMask(name="divided")([L.Dense(64, activation="gelu")(x), x])
        return keras.Model(inputs, L.Dense(1)(L.Dense(64, activation="gelu")(y)))

    tokens = np.random.default_rng(0).integers(0, 3, (8, 6))
    losses = []
    for enabled in (False, True):
        model = fresh(masked)
        model.compile("sgd", "mse")
        if enabled:
            plan = tfgc.plan(model, 8, strategy="optimal", slices=4)
            of = {name: segment.chunks for segment in plan.segments for name in segment.nodes}
            assert of["divided"] == 1
            assert max(of.values()) == 4
            tfgc.enable(model, plan)
        losses.append(
            model.fit(tokens, noise(8, 6, 1), batch_size=8, epochs=3, verbose=0, shuffle=False).history["loss"]
        )
    np.testing.assert_allclose(*losses, rtol=1e-5)


FACTORS = {
    "mean over the samples": lambda x: keras.ops.mean(x, axis=0, keepdims=True),
    "largest number": keras.ops.max,
}


@pytest.mark.parametrize("kind", FACTORS)
def test_plans_do_not_slice_what_reads_something_without_samples(kind):
    def wide():
        inputs = keras.Input((4,))
        x = keras.ops.multiply(FACTORS[kind](inputs), inputs)
        for _ in range(4):
            x = L.Dense(4)(L.Dense(64, activation="gelu")(x))
        return keras.Model(inputs, x)

    losses, x = [], noise(20, 4)
    for enabled in (False, True):
        model = fresh(wide)
        model.compile("sgd", "mse")
        if enabled:
            plan = tfgc.plan(model, 8, strategy="optimal", slices=4)
            of = {name: segment.chunks for segment in plan.segments for name in segment.nodes}
            assert {slices for name, slices in of.items() if not name.startswith("dense")} == {1}
            assert max(of.values()) == 4
            tfgc.enable(model, plan)
        losses.append(model.fit(x, x, batch_size=8, epochs=2, verbose=0, shuffle=False).history["loss"])
    np.testing.assert_allclose(*losses, rtol=1e-5)


@pytest.mark.parametrize("batch", [8, None])
def test_a_segment_that_reads_something_without_samples_is_refused(batch):
    def build():
        inputs = keras.Input((4,))
        means = L.Lambda(FACTORS["mean over the samples"])(inputs)
        return keras.Model(inputs, L.Dense(4)(L.Multiply()([means, inputs])))

    model = fresh(build)
    cut = [(0, 1, "keep"), (1, 3, 2)]
    plan = tfgc.plan(model, 8, strategy=lambda graph: tfgc.Plan.from_pieces(graph, cut, strategy="by hand"))
    tfgc.enable(model, plan)
    step = tf.function(lambda x: model(x, training=True), input_signature=[tf.TensorSpec((batch, 4))])
    with tf.GradientTape(), pytest.raises(tfgc.UnsupportedModelError, match="different numbers of samples"):
        step(noise(8, 4))


class BySize(L.Layer):
    """Divides by the number of samples, of which traced operations show a constant."""

    def call(self, x):
        return 4 * x / keras.ops.cast(keras.ops.shape(x)[0], x.dtype)


BY_SIZE = {"layer": BySize, "Lambda": lambda: L.Lambda(lambda x: 4 * x / tf.cast(tf.shape(x)[0], x.dtype))}


@pytest.mark.parametrize(("ahead", "kind"), in_turn([True, False], BY_SIZE))
def test_plans_do_not_slice_what_reads_the_size_of_its_batch(ahead, kind):
    def wide():
        layers = [[L.Dense(64, activation="gelu"), L.Dense(4), BY_SIZE[kind]()] for _ in range(3)]
        return keras.Sequential([keras.Input((4,)), *itertools.chain(*layers)])

    losses, x = [], noise(8, 4)
    for enabled in (False, True):
        model = fresh(wide)
        model.compile("sgd", "mse")
        if enabled and ahead:
            tfgc.enable(model, tfgc.plan(model, 8, strategy="optimal", slices=4))
        elif enabled:
            tfgc.enable(model, slices=4, verbose=0)
        losses.append(model.fit(x, x, batch_size=8, epochs=3, verbose=0, shuffle=False).history["loss"])
    (planned,) = tfgc.status(model).plans
    of = {name: segment.chunks for segment in planned.plan.segments for name in segment.nodes}
    assert {of[layer.name] for layer in model.layers[2::3]} == {1}
    assert max(of.values()) == 4
    np.testing.assert_allclose(*losses, rtol=1e-5)


def test_budgets_below_all_other_plans_are_met_with_slices():
    model = fresh(convolutions)
    least = tfgc.estimate(model, 512, tfgc.plan(model, 512, strategy="optimal"), optimizer="sgd").needed_bytes
    budget = int(0.7 * least)
    with pytest.raises(tfgc.InfeasibleBudgetError):
        tfgc.plan(model, 512, budget=budget, optimizer="sgd")
    plan = tfgc.plan(model, 512, budget=budget, optimizer="sgd", slices=8)
    assert tfgc.estimate(model, 512, plan, optimizer="sgd").needed_bytes <= budget
    overheads = [tfgc.plan(model, 512, budget=b, slices=8).outlook.overhead for b in ("30%", "60%", "90%")]
    assert overheads == sorted(overheads, reverse=True)


def test_there_are_plans_for_budgets_near_the_least_with_slices():
    """The plain step needs ten times as much: memory is counted in smaller slots there."""
    x = L.Conv2D(8, 3, padding="same")(inputs := keras.Input((32, 32, 3)))
    for _ in range(12):
        x = L.Add()([x, L.Conv2D(8, 3, padding="same", activation="relu")(L.LayerNormalization()(x))])
    model = keras.Model(inputs, L.Dense(3)(L.GlobalAveragePooling2D()(x)))
    graph = node_costs.annotate(keras_graph.Program(model, 64, {}), xla=False)
    peaks = strategies.frontier(graph, slices=8, nested=False).peaks
    assert 10 * peaks[0] < peaks[-1]
    assert sum(peak < 2 * peaks[0] for peak in peaks) > 6


def activation_peak(slices, mode):
    layers = [L.Dense(64, activation="relu") for _ in range(6)]
    model = keras.Sequential([keras.Input((2048, 64)), *layers, L.GlobalAveragePooling1D(), L.Dense(1)])
    plan = tfgc.plan(model, 16, strategy="optimal", slices=slices) if slices else tfgc.plan(model, strategy="keep_all")
    step = tfgc.train_step(model, "mse", "sgd", plan=plan, run_eagerly=mode == "compiled")
    peak = memory.peak(step, tf.ones((16, 2048, 64)), tf.zeros((16, 1)))
    predicted = tfgc.estimate(model, 16, plan, mode=mode, optimizer="sgd", loss="mse")
    return peak, max(predicted.peak_bytes, predicted.allocated_bytes) - predicted.fixed_bytes


@pytest.mark.gate
@pytest.mark.parametrize("mode", mostly("graph", modes=["graph", "compiled"]))
def test_the_inside_needs_its_share(mode):
    plain, _ = memory.alone(activation_peak, 0, mode)
    whole, _ = memory.alone(activation_peak, 1, mode)
    slices, predicted = memory.alone(activation_peak, 8, mode)
    assert slices < 0.3 * plain
    assert slices < 0.5 * whole
    of_a_slice = 2 * 2048 * 64 * 4  # Threads may start an operation before what the one before read is freed.
    assert 0.85 * predicted < slices < predicted + 2.5 * of_a_slice


def test_what_is_summed_up_inside_is_no_gradient_of_the_inputs():
    """It lasts as long as a slice; those of the inputs are there for all slices."""
    graph = node_costs.annotate(keras_graph.Program(fresh(convolutions), 8, {}), xla=False)
    buffers, end = Buffers.of(graph), graph.position["flatten"]
    one = 8 * 8 * 8 * 4 * 4  # a batch of images of four channels
    assert [size for _, size in sliced_events.cotangents(buffers, range(1, end))[0]] == [one, one]
    assert sliced_events.cotangents(buffers, range(end))[0] == []


def test_sums_with_what_comes_from_behind_are_no_gradients_of_the_inputs():
    """However many residual blocks a segment holds, it hands on the gradient of what it reads."""
    inputs = keras.Input((8, 8, 2))
    x = L.Conv2D(4, 3, padding="same", name="first")(inputs)
    for _ in range(4):
        x = L.Add()([x, L.Conv2D(4, 3, padding="same")(x)])
    model = keras.Model(inputs, L.Dense(3)(L.Flatten(name="flatten")(x)))
    graph = node_costs.annotate(keras_graph.Program(model, 8, {}), xla=False)
    part = range(graph.position["first"] + 1, graph.position["flatten"])
    handed, ended = sliced_events.cotangents(Buffers.of(graph), part)
    assert [size for _, size in handed] == [8 * 8 * 8 * 4 * 4]
    assert len(ended) == 1


def test_a_batch_that_does_not_divide_needs_what_its_largest_slice_does():
    """Nine samples in eight slices are five slices, of two samples at most."""
    model = fresh(convolutions)
    nine, eight, five = (tfgc.estimate(model, 9, sliced(model, slices)).peak_bytes for slices in (9, 8, 5))
    assert nine < eight == five


def test_sparse_gradients_under_xla_need_a_known_batch():
    model = keras.Sequential([keras.Input((5,), dtype="int32"), L.Embedding(9, 4), L.Flatten(), L.Dense(3)])
    model.compile("sgd", "mse", jit_compile=True)
    tfgc.enable(model, sliced(model, 4))
    with pytest.raises(tfgc.UnsupportedModelError, match="drop_remainder=True"):
        model.fit(np.ones((20, 5), "int32"), np.ones((20, 3)), batch_size=8, verbose=0)


class HiddenState(L.Layer):
    def call(self, x):
        return x * tf.random.uniform((tf.shape(x)[0], 1, 1, 1))


class OfTheBatch(L.Layer):
    """Its mask depends on all samples, by its seed."""

    def call(self, x):
        return x * tf.random.stateless_uniform(tf.shape(x), seed=tf.cast(tf.stack([1, tf.reduce_sum(x)]), "int32"))


class Truncated(L.Layer):
    def call(self, x):
        return x + keras.random.truncated_normal(tf.shape(x), seed=3)


def with_layer(layer):
    return lambda: keras.Sequential([keras.Input((8, 8, 2)), layer(), L.Flatten(), L.Dense(3)])


MISTAKES = {
    "BatchNormalization": (normalized, "'bn' updates its variable"),
    "one mask for all": (
        with_layer(lambda: L.Dropout(0.5, noise_shape=(1, 8, 8, 2), name="drop")),
        "'drop' draws random numbers that are not a row for each sample",
    ),
    "hidden state": (with_layer(HiddenState), "'hidden_state' draws random numbers from hidden state"),
    "seed": (with_layer(OfTheBatch), "'of_the_batch' mixes the samples"),
    "kind": (with_layer(Truncated), "'truncated' draws random numbers by StatelessTruncatedNormalV2, of which a slice"),
    "loss": (
        with_layer(lambda: L.ActivityRegularization(0.1, name="cost")),
        "'cost' adds a loss",
    ),
}


@pytest.mark.parametrize(("name", "mode"), in_turn(MISTAKES, ["eager", "graph"]))
def test_segments_that_cannot_be_sliced_are_refused_by_name(name, mode):
    build, words = MISTAKES[name]
    model = fresh(build)
    tfgc.enable(model, sliced(model, 2))
    with pytest.raises(tfgc.UnsupportedModelError, match=f"cannot run in 2 slices of the batch: {words}"):
        gradients(model, mode)


@pytest.mark.parametrize("mode", ["eager", "compiled", "graph"])
def test_a_segment_is_looked_at_again_when_a_layer_of_it_was_changed(mode):
    model = fresh(with_layer(lambda: MayMix(name="may_mix")))
    tfgc.enable(model, sliced(model, 2))
    gradients(model, mode)
    model.get_layer("may_mix").mixes = True
    with pytest.raises(tfgc.UnsupportedModelError, match="cannot run in 2 slices of the batch: 'may_mix' mixes"):
        gradients(model, mode)


def test_a_normalization_that_was_thawed_runs_on_the_whole_batch():
    build = with_layer(lambda: L.BatchNormalization(name="norm"))

    def made(enabled):
        model = fresh(build)
        model.get_layer("norm").trainable = False
        if enabled:
            tfgc.enable(model, sliced(model, 2))
        gradients(model, "compiled")
        model.get_layer("norm").trainable = True
        updates = pytest.warns(tfgc.NotReplayableWarning, match="updates .*moving_mean")
        with updates if enabled else contextlib.nullcontext():
            return gradients(model, "compiled")

    (loss, expected), (found_loss, found) = made(enabled=False), made(enabled=True)
    np.testing.assert_allclose(found_loss, loss, rtol=1e-5)
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-5)


def with_operations_given_the_batch():
    inputs = keras.Input(batch_shape=(8, 64))
    x = inputs
    for _ in range(4):
        x = L.Dense(64, "gelu")(x)
        x = keras.ops.reshape(keras.ops.gelu(keras.ops.reshape(x, (8, 2, 32))), (8, 64))
        x = keras.ops.add(x, np.ones((8, 64), "float32"))
    return keras.Model(inputs, x)


def with_an_input_of_size_zero():
    inputs = [keras.Input((0,)), keras.Input((64,))]
    x = L.Concatenate()(inputs)
    for _ in range(4):
        x = L.Dense(64, "gelu")(x)
    return keras.Model(inputs, x)


@pytest.mark.parametrize(
    ("build", "x", "at_once"),
    [
        (with_operations_given_the_batch, noise(8, 64), r"ops\.(reshape|add)"),
        (with_an_input_of_size_zero, [noise(8, 0), noise(8, 64)], None),
    ],
)
def test_planned_slices_train(build, x, at_once):
    def losses(enabled):
        model = fresh(build)
        model.compile("sgd", "mse")
        if enabled:
            plan = tfgc.plan(model, 8, strategy="optimal", slices=2)
            in_slices = [name for s in plan.segments if s.chunks > 1 for name in s.nodes]
            assert in_slices
            assert at_once is None or not any(re.search(at_once, name) for name in in_slices)
            tfgc.enable(model, plan)
        return model.fit(x, noise(8, 64, seed=1), batch_size=8, epochs=3, verbose=0).history["loss"]

    np.testing.assert_allclose(losses(enabled=True), losses(enabled=False), rtol=1e-5)


def test_slices_that_make_no_sense_are_refused():
    for wrong in (0, -1, 2.0, True):
        with pytest.raises(tfgc.OptionError, match=r"chunks=.* is not a number of slices"):
            tfgc.Segment(("a",), chunks=wrong)
    with pytest.raises(tfgc.OptionError, match="a segment that is kept runs on the whole batch"):
        tfgc.Segment(("a",), mode="keep", chunks=2)
    with pytest.raises(tfgc.OptionError, match="a plan by calls runs them on the whole batch"):
        tfgc.Plan((tfgc.Segment(("a",), chunks=2),), "calls", ("a",), calls=True)
    with pytest.raises(tfgc.OptionError, match="slices"):
        tfgc.plan(fresh(convolutions), 8, strategy="optimal", slices=0)
