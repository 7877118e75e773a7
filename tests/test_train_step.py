"""The custom training step against Keras's own `train_on_batch`."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from equality import fresh, in_turn, noise

import tfgc

L = keras.layers
X, Y = noise(16, 8), tf.constant(np.random.default_rng(2).integers(0, 3, (16, 1)))
WEIGHT = tf.constant(np.random.default_rng(3).uniform(size=16), "float32")


def classifier():
    return keras.Sequential(
        [
            keras.Input((8,)),
            L.Dense(16, activity_regularizer="l2"),
            L.Dropout(0.5),
            L.BatchNormalization(),
            L.Dense(8, kernel_regularizer="l2"),
            L.Dense(3),
        ]
    )


def two_heads():
    inputs = keras.Input((8,))
    x = L.Dropout(0.3)(L.Dense(8)(inputs))
    return keras.Model(inputs, [L.Dense(3, name="label")(x), L.Dense(1, name="size")(x)])


CROSS_ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
CASES = {
    "one loss": (classifier, CROSS_ENTROPY, ["accuracy"], X, Y),
    "by output name": (two_heads, {"label": CROSS_ENTROPY, "size": "mse"}, None, X, [Y, noise(16, 1)]),
    "list": (two_heads, [CROSS_ENTROPY, "mae"], None, X, [Y, noise(16, 1)]),
}


def keras_steps(case, sample_weight=None, run_eagerly=False, optimizer="adam"):
    build, loss, metrics, x, y = CASES[case]
    model = fresh(build)
    model.compile(optimizer, loss, metrics=metrics, run_eagerly=run_eagerly, auto_scale_loss=False)
    logs = []
    for _ in range(3):
        model.reset_metrics()
        logs.append(model.train_on_batch(x, y, sample_weight, return_dict=True))
    return model, logs


@pytest.mark.parametrize(("case", "run_eagerly"), in_turn(CASES, (False, True)))
def test_steps_equal_those_of_keras(case, run_eagerly):
    weight = WEIGHT if case == "one loss" else None
    plain, expected = keras_steps(case, weight)
    build, loss, metrics, x, y = CASES[case]
    model = fresh(build)
    step = tfgc.train_step(model, loss, "adam", metrics=metrics or (), run_eagerly=run_eagerly)
    for logs in expected:
        step.reset_metrics()
        found = step(x, y, weight)
        for name in ("loss", *(["accuracy"] if metrics else [])):
            np.testing.assert_allclose(float(found[name]), logs[name], rtol=1e-5)
    for v, w in zip(plain.variables, model.variables, strict=True):
        np.testing.assert_allclose(v, w, rtol=1e-4, atol=1e-6)
    assert "call" not in vars(model)


@pytest.mark.gate
def test_jit_compiled_step_equals_the_jit_compiled_plain_step():
    results = []
    for strategy in ("keep_all", "uniform"):
        model = fresh(classifier)
        step = tfgc.train_step(model, CROSS_ENTROPY, "sgd", plan=tfgc.plan(model, strategy=strategy), jit_compile=True)
        results.append([float(step(X, Y)["loss"]) for _ in range(3)])
    np.testing.assert_allclose(*results, rtol=1e-6)


def recurrent():
    return keras.Sequential([keras.Input((12, 8)), *(L.LSTM(8, return_sequences=True) for _ in range(3)), L.Dense(1)])


@pytest.mark.gate
@pytest.mark.parametrize("way", ["train_step", "function"])
def test_loops_run_again_under_xla(way):
    """They keep lists, which pass no barrier; and XLA has to know how often they run."""
    x, y = noise(8, 12, 8), noise(8, 12, 1)
    plain, model = fresh(recurrent), fresh(recurrent)
    plain.compile("sgd", "mse", jit_compile=True)
    step = tfgc.train_step(model, "mse", "sgd", jit_compile=True)
    if way == "function":
        model.compile("sgd", "mse")
        model.optimizer.build(model.trainable_variables)
        step = tfgc.function(lambda x, y: model.train_step((x, y)), jit_compile=True, verbose=0)
    for _ in range(2):
        plain.train_on_batch(x, y)
        step(x, y)
    for v, w in zip(plain.trainable_variables, model.trainable_variables, strict=True):
        np.testing.assert_allclose(w, v, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("run_eagerly", [False, True], ids=["graph", "eager"])
def test_loss_is_scaled_and_an_overflow_skips_the_step(run_eagerly):
    keras.config.set_dtype_policy("mixed_float16")
    model = fresh(two_heads)
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=2.0**10)
    step = tfgc.train_step(model, [CROSS_ENTROPY, "mse"], optimizer, run_eagerly=run_eagerly)
    targets = [Y, noise(16, 1)]
    first = [v.numpy() for v in model.trainable_variables]
    step(X, targets)
    before = [v.numpy() for v in model.trainable_variables]
    assert all((v != w).any() for v, w in zip(first, before))
    logs = step(X * 1e6, targets)
    assert not np.isfinite(float(logs["loss"]))
    for v, w in zip(before, model.trainable_variables):
        np.testing.assert_array_equal(v, w)
    assert float(optimizer.dynamic_scale) == 2.0**9


def test_the_step_uses_the_plan_and_leaves_the_model_as_it_is():
    def products(**options):
        model = tfgc.enable(fresh(classifier), strategy="uniform", verbose=0)
        call = model.call
        step = tfgc.train_step(model, CROSS_ENTROPY, "sgd", plan=tfgc.plan(model, **options))
        graph = tf.function(step).get_concrete_function(X, Y).graph.as_graph_def()
        assert model.call == call
        return sum(node.op == "MatMul" for function in graph.library.function for node in function.node_def)

    assert products(strategy="uniform", segments=3) > products(strategy="keep_all")


def test_metrics_run_on_until_they_are_reset():
    metric = keras.metrics.SparseCategoricalAccuracy()
    step = tfgc.train_step(fresh(classifier), CROSS_ENTROPY, "sgd", metrics=[metric])
    step(X, Y)
    logs = step(X[:4], Y[:4])
    assert float(metric.count) == 20.0
    assert float(logs["sparse_categorical_accuracy"]) == float(metric.result())
    step.reset_metrics()
    assert float(metric.count) == 0.0


def test_eager_and_jit_exclude_each_other():
    with pytest.raises(tfgc.OptionError, match="cannot be combined"):
        tfgc.train_step(fresh(classifier), "mse", "sgd", run_eagerly=True, jit_compile=True)


@pytest.mark.parametrize("options", [{}, {"jit_compile": True}, {"run_eagerly": True}])
def test_a_weight_is_frozen_and_thawed_between_steps(options):
    model = fresh(lambda: keras.Sequential([keras.Input((8,)), L.Dense(8, activation="tanh"), L.Dense(3)]))
    step, bias = tfgc.train_step(model, "mse", "sgd", **options), model.layers[0].bias
    for trainable in (True, False, True):
        bias.trainable = trainable
        before = bias.numpy()
        step(X, noise(16, 3))
        assert (bias.numpy() != before).any() == trainable


@pytest.mark.parametrize("options", [{}, {"run_eagerly": True}], ids=["graph", "eager"])
def test_targets_may_be_left_out_where_no_loss_reads_them(options):
    def regularized():
        return keras.Sequential([keras.Input((8,)), L.Dense(16, activation="relu", activity_regularizer="l2")])

    plain = fresh(regularized)
    plain.compile("sgd")
    model = fresh(regularized)
    step = tfgc.train_step(model, None, "sgd", **options)
    for expected in (plain.train_on_batch(X) for _ in range(2)):
        np.testing.assert_allclose(step(X)["loss"], expected, rtol=1e-5)
    with pytest.raises(
        tfgc.OptionError, match=r"'\w+' was called without targets, which loss='mse' compares .* step\(x, y\)"
    ):
        tfgc.train_step(model, "mse", "sgd", **options)(X)


@pytest.mark.gpu
def test_step_on_a_gpu_equals_the_plain_step_there():
    plain, expected = keras_steps("one loss")
    model = fresh(classifier)
    step = tfgc.train_step(model, CROSS_ENTROPY, "adam")
    for logs in expected:
        np.testing.assert_allclose(float(step(X, Y)["loss"]), logs["loss"], rtol=1e-4)
    for v, w in zip(plain.variables, model.variables, strict=True):
        np.testing.assert_allclose(v, w, rtol=1e-3, atol=1e-5)
