"""Models of real shape, three steps of `fit` each: losses, weights and states with tfgc are those of plain training."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from equality import TOLERANCE, build_metrics, fresh, states
from real_models import BATCH, MODELS, STEPS

import tfgc

# What `compile` is given. Compiled segments are compared with the whole step as a graph.
MODES = {"fit": {"jit_compile": False}, "fit, eager": {"run_eagerly": True}, "fit, XLA": {"jit_compile": True}}
BASELINES = {"fit": "fit", "fit, eager": "fit", "fit, XLA": "fit, XLA"}
EPS = 2.0**-23


class Logs(keras.callbacks.Callback):
    """Losses and metrics after each step."""

    def __init__(self):
        super().__init__()
        self.steps = []

    def on_train_batch_end(self, batch, logs=None):
        self.steps.append({name: float(value) for name, value in logs.items()})


def trained(row, settings, enabled):
    """Train a model of the table for three steps.

    Returns:
        The logs of each step, and two mappings, by kind and then by name: every variable before and after.
    """
    keras.config.set_dtype_policy(row.policy)
    model = fresh(row.build)
    if enabled:
        row.enable(model)
    model.compile(**row.compile(), **settings)
    for optimizer, weights in optimizers(model):
        optimizer.build(weights)
    before, logs, arguments = variables(model), Logs(), row.data()
    if model._compile_metrics is not None:
        build_metrics(model, arguments["x"], arguments["y"], arguments.get("sample_weight"))
    callbacks = [logs, *arguments.pop("callbacks", ())]
    model.fit(**arguments, batch_size=BATCH, shuffle=False, verbose=0, callbacks=callbacks)
    return logs.steps, before, variables(model)


def optimizers(model):
    """Each optimizer of a model with the weights that it moves."""
    if hasattr(model, "d_optimizer"):
        yield model.d_optimizer, model.discriminator.trainable_variables
        yield model.g_optimizer, model.generator.trainable_variables
    else:
        yield model.optimizer, model.trainable_variables


def variables(model):
    weights = {id(v) for v in model.trainable_variables}
    kinds = {
        "weights": [v for v in states(model) if id(v) in weights],
        "states": [v for v in states(model) if id(v) not in weights],
    }
    kinds |= {f"optimizer {i}": optimizer.variables for i, (optimizer, _) in enumerate(optimizers(model))}
    return {kind: {f"{i} {v.path}": np.array(v) for i, v in enumerate(vs)} for kind, vs in kinds.items()}


def norm(x):
    return np.linalg.norm(np.asarray(x, "float64"))


def compare(plain, ours, tol):
    """Losses by `tol`; what moved by `tol` of its way, or of 0.001 of the longest way of its kind; integers exactly.

    Ways and not values are compared, so that a wrong gradient does not hide behind a small learning rate. Each step
    also rounds the value.
    """
    (logs, before, after), (our_logs, our_before, our_after) = plain, ours
    assert len(logs) == len(our_logs) == STEPS
    for step, (a, b) in enumerate(zip(logs, our_logs)):
        assert list(a) == list(b)
        np.testing.assert_allclose(list(b.values()), list(a.values()), rtol=tol, err_msg=f"{list(a)} of step {step}")
    for kind, values in after.items():
        assert list(values) == list(our_after[kind])
        # A metric has its variables from the first step on.
        ways = {name: v - before[kind].get(name, 0) for name, v in values.items() if v.dtype.kind == "f"}
        longest = max(map(norm, ways.values()), default=0.0)
        for name, value in values.items():
            where = f"{kind}, {name}"
            if name in before[kind]:
                np.testing.assert_array_equal(our_before[kind][name], before[kind][name], f"{where}, at the start")
            if name not in ways:
                np.testing.assert_array_equal(our_after[kind][name], value, where)
                continue
            assert np.isfinite(value).all(), where
            error = norm(our_after[kind][name] - value)
            allowed = tol * max(norm(ways[name]), 1e-3 * longest) + STEPS * EPS * norm(value)
            assert error <= allowed, f"{where}: differs by {error}, allowed {allowed}, moved by {norm(ways[name])}"


@functools.cache
def plainly(name, mode):
    """What the plain model comes to."""
    return trained(MODELS[name], MODES[mode], enabled=False)


def cells():
    for name, row in MODELS.items():
        for mode in MODES:
            rare = pytest.mark.gate if mode in row.gate else pytest.mark.slow
            yield pytest.param(name, mode, marks=[] if mode in row.fast else rare)


@pytest.mark.gate
@pytest.mark.parametrize(("name", "mode"), cells())
def test_training_equals_plain_training(name, mode, replays):
    row = MODELS[name]
    plain = plainly(name, BASELINES[mode])
    assert not replays
    ours = trained(row, MODES[mode], enabled=True)
    assert replays or mode == "fit", "nothing was recomputed"  # `fit` copies operations, and replays no segment
    compare(plain, ours, TOLERANCE[row.policy])


@pytest.mark.slow
def test_resnet50_differs_by_rounding_alone():
    """In float32 its update by a plan moves by 1 %, as between plain modes: it amplifies rounding."""

    def gradients(enabled):
        keras.utils.clear_session(free_memory=False)
        keras.utils.set_random_seed(0)
        model = keras.applications.ResNet50(weights=None, input_shape=(96, 96, 3), classes=10)
        if enabled:
            tfgc.enable(model, tfgc.plan(model, 8, strategy="optimal"))
        loss = keras.losses.SparseCategoricalCrossentropy()

        @tf.function
        def step(x, y):
            with tf.GradientTape() as tape:
                value = loss(y, model(x, training=True))
            return tape.gradient(value, model.trainable_variables)

        x = np.random.default_rng(0).normal(size=(8, 96, 96, 3))
        return np.concatenate([np.ravel(g) for g in step(tf.constant(x), tf.range(8))])

    floats = keras.config.floatx()
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    try:
        plain, ours = gradients(False), gradients(True)
    finally:
        keras.config.set_floatx(floats)
        keras.config.set_dtype_policy(floats)
    assert np.linalg.norm(ours - plain) <= 1e-12 * np.linalg.norm(plain)
