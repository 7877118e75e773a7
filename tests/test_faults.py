"""After a step that ran out of memory anywhere the model trains on as a plain one, and its states say what ran."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from equality import MODES, TOLERANCE, assert_same, fresh, noise
from faults import PASSES, Trap, arm, armed

import tfgc

L = keras.layers
X, Y = noise(6, 8), noise(6, 4, seed=2)
BLOCKS = 3
GLOBAL = "Keras's seed"
WHERE = (*PASSES, "traced forward", "traced backward")


class Noise(L.Layer):
    """Draws from Keras's global seed."""

    def call(self, x):
        return x + 0.1 * keras.random.normal(tf.shape(x))


def trapped():
    x = inputs = keras.Input((8,))
    for i in range(BLOCKS):
        # Without biases, whose gradients before a normalization are rounding.
        dense = L.Dense(8, activation=None if i == 1 else "gelu", use_bias=False)
        x = (L.SpectralNormalization(dense) if i == 1 else dense)(x)
        x = L.Dropout(0.3)(L.BatchNormalization(momentum=0.5)(x))
        x = Trap(name=f"trap{i}")(Noise()(x))
    return keras.Model(inputs, L.Dense(4)(x))


def states(model):
    """All that a forward pass moves: statistics, seeds, and Keras's global seed."""
    seed = keras.src.random.seed_generator.global_seed_generator().state
    names = {id(v): layer.name for layer in model.layers for v in layer.variables}
    return {f"{names.get(id(v), GLOBAL)}/{i} {v.path}": v for i, v in enumerate([*model.variables, seed])}


def values(model):
    return {path: v.numpy().copy() for path, v in states(model).items()}


def load(model, values):
    for path, variable in states(model).items():
        variable.assign(values[path])


def step_of(model, mode):
    """A step that returns the loss and the gradients."""
    variables = [v.value for v in model.trainable_variables]

    def step(x=X, y=Y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        return loss, tape.gradient(loss, variables)

    return tf.function(step, jit_compile=mode == "xla") if mode in ("graph", "xla") else step


def enabled(mode):
    model = fresh(trapped)
    plan = tfgc.plan(model, strategy="uniform", segments=BLOCKS)
    return tfgc.enable(model, plan), plan


def results(step, model):
    loss, gradients = step()
    return {"loss": loss.numpy(), "gradients": [g.numpy() for g in gradients], "states": values(model)}


def crossed():
    """Each pass and each segment in the gate, the rest among the slow tests."""
    fast = {
        ("eager", 1, "replay"),
        ("eager", 1, "traced forward"),
        ("compiled", 0, "backward"),
        ("compiled", 0, "traced backward"),
        ("graph", 1, "traced forward"),
        ("graph", 1, "replay"),
        ("graph", 1, "forward"),
        ("compiled", 1, "replay"),
        ("eager", 1, "backward"),
    }
    for mode in MODES:
        for i in range(BLOCKS):
            for where in WHERE:
                if where == "replay" and i in (0, BLOCKS - 1):  # Nothing reads the end of the first, the last is kept.
                    continue
                marks = [] if (mode, i, where) in fast else pytest.mark.slow
                yield pytest.param(mode, i, where, marks=marks)


@pytest.fixture(autouse=True)
def nothing_armed():
    arm()


@pytest.mark.gate
@pytest.mark.parametrize(("mode", "i", "where"), crossed())
def test_a_model_trains_on_after_a_fault(mode, i, where):
    traced = where.startswith("traced")
    plain, (model, _) = fresh(trapped), enabled(mode)
    step, plain_step = step_of(model, mode), step_of(plain, "graph")
    if not traced:
        step()
    before = values(model)
    arm(f"trap{i}", where)
    with pytest.raises(tf.errors.ResourceExhaustedError, match=f"OOM in trap{i}"):
        step()
    assert armed["trap"] is None
    after = values(model)

    load(plain, before)
    drawn = [list(values(plain).values())[-1]]  # Keras's seed, from which each block draws once
    for _ in range(BLOCKS):
        keras.random.normal((1,))
        drawn.append(list(values(plain).values())[-1])
    load(plain, before)
    plain_step()
    whole = values(plain)
    tolerance = 0.0 if mode == "eager" else TOLERANCE["float32"]
    for path, value in after.items():
        possible = drawn if path.startswith(GLOBAL) else [before[path], whole[path]]
        if traced:
            possible = possible[:1]
        elif where != "forward" and mode != "graph":  # Forward, which runs in any order, is over.
            possible = possible[-1:]
        errors = [np.linalg.norm(np.float64(value) - one) for one in possible]
        assert min(errors) <= tolerance * max(np.linalg.norm(value), 1e-3), path

    load(plain, after)
    expected = results(plain_step, plain)
    load(model, after)  # the global seed
    assert_same(expected, results(step, model), tolerance, "the next step")


def assert_untouched(before, model):
    for path, value in values(model).items():
        np.testing.assert_array_equal(value, before[path], path)


def assert_trains_plainly(plain, model, step, before):
    """The next step of a model under XLA is that of a plain one."""
    load(plain, before)
    expected = results(step_of(plain, "xla"), plain)
    load(model, before)  # the global seed
    assert_same(expected, results(step, model), TOLERANCE["float32"], "the next step")


@pytest.mark.parametrize(
    "i", [pytest.param(i, marks=pytest.mark.gate if i == 1 else pytest.mark.slow) for i in range(BLOCKS)]
)
def test_a_model_trains_on_after_faults_while_xla_traces(i):
    """In each trace of a pass: of the forward and of the backward pass."""
    for where in ("traced backward", "traced forward"):
        plain, (model, _) = fresh(trapped), enabled("xla")  # anew, since one that was traced is not traced again
        step, before = step_of(model, "xla"), values(model)
        for nth in itertools.count(1):
            arm(f"trap{i}", where, nth)
            try:
                step_of(model, "xla").get_concrete_function()
            except tf.errors.ResourceExhaustedError as fault:
                said = str(fault)
            else:
                break
            assert f"OOM in trap{i}, {where}" in said
            assert_untouched(before, model)
        arm()
        assert nth > 1
    assert_trains_plainly(plain, model, step, before)


@pytest.mark.parametrize("error", [tf.errors.ResourceExhaustedError(None, None, "OOM here"), MemoryError("OOM here")])
def test_a_function_that_cannot_be_traced_for_want_of_memory_is_not_run_plainly(error):
    """It was, with the warning that it cannot be run twice."""
    armed = [error]

    def function(x):
        if armed and tf.is_symbolic_tensor(x):
            raise armed.pop()
        return x * x

    square = tfgc.recompute(function)
    x = tf.constant(3.0)
    with pytest.raises(type(error), match="OOM here"):
        square(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = square(x)
    assert float(tape.gradient(y, x)) == 6.0


@pytest.mark.gate
def test_a_fault_while_the_first_call_plans():
    model = tfgc.enable(fresh(trapped), strategy="uniform", verbose=0)
    step = step_of(model, "compiled")
    arm("trap1", "traced forward")
    with pytest.raises(tf.errors.ResourceExhaustedError, match="OOM in trap1"):
        step()
    assert not tfgc.status(model).plans
    step()
    assert [one.plan.strategy for one in tfgc.status(model).plans] == ["uniform"]
