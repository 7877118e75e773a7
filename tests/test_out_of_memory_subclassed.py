"""A step of a subclassed model that runs out of memory: explained, or run again by a plan that needs less."""

import functools
import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from equality import fresh, noise
from faults import PASSES, Trap, arm, armed

import tfgc
from tfgc._units import format_bytes

L = keras.layers
X, Y = noise(64, 8), noise(64, 1)


class Block(L.Layer):
    """What a replay has to leave alone, and a trap."""

    def __init__(self, number, **options):
        super().__init__(**options)
        layers = [L.Dense(32, "gelu"), L.BatchNormalization(momentum=0.5), L.Dropout(0.3)]
        self.inside = [*layers, Trap(name=f"trap{number}"), L.Dense(8, "gelu")]

    def build(self, shape):
        for layer in self.inside:
            layer.build(shape)
            shape = layer.compute_output_shape(shape)

    def call(self, x, training=None):
        y = x
        for layer in self.inside:
            kwargs = {"training": training} if isinstance(layer, L.BatchNormalization | L.Dropout) else {}
            y = layer(y, **kwargs)
        return x + y

    def compute_output_shape(self, shape):
        return shape


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__(name="subclassed")
        self.blocks = [Block(i) for i in range(4)]
        self.head = L.Dense(1)

    def call(self, x, training=None):
        for block in self.blocks:
            x = block(x, training=training)
        return self.head(x)


class Backbone(L.Layer):
    """Nearly all of a functional model."""

    def __init__(self):
        super().__init__()
        self.blocks = [Block(i) for i in range(4)]

    def build(self, shape):
        for block in self.blocks:
            block.build(shape)

    def call(self, x, training=None):
        for block in self.blocks:
            x = block(x, training=training)
        return x


def fat():
    inputs = keras.Input((8,))
    return keras.Model(inputs, L.Dense(1)(Backbone()(inputs)), name="fat")


def built():
    model = Subclassed()
    model(X)
    return model


@pytest.fixture(autouse=True)
def _nothing_stays_armed():
    yield
    arm()


BUILDS = {"at the first step": built, "in a fat layer": fat, "given": built}


def fitted(how, trap=None, where=None, on_oom="replan"):
    """The state after two epochs of `fit`, and its losses; a trap is armed in the second epoch."""
    model = fresh(BUILDS[how])
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse", metrics=["mae"])
    if how == "given":
        tfgc.enable(model, tfgc.plan(model, budget="70%", example=(X, Y)), on_oom=on_oom)
    else:
        tfgc.enable(model, budget="70%", on_oom=on_oom, verbose=0)

    class ArmInTheSecondEpoch(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            arm(*(trap, where) if epoch == 1 else ())

    arms = [ArmInTheSecondEpoch()]
    history = model.fit(X, Y, batch_size=64, epochs=2, shuffle=False, verbose=0, callbacks=arms).history
    assert armed["trap"] is None
    return model, [np.array(v) for v in (*model.variables, *model.optimizer.variables)], history


@functools.cache
def without_fault(how):
    return fitted(how, on_oom=None)


def crossed():
    """Each pass and each way once in the fast suite."""
    fast = {("at the first step", "backward"), ("in a fat layer", "forward"), ("given", "forward")}
    for case in itertools.product(BUILDS, PASSES):
        if case[1] == "replay":  # a step as a whole need not copy what is there to fail
            continue
        yield pytest.param(*case, marks=[] if case in fast else pytest.mark.slow)


@pytest.mark.gate
@pytest.mark.parametrize(("how", "where"), crossed())
def test_fit_goes_on_as_if_nothing_had_happened(how, where):
    before, expected, history = without_fault(how)
    said = r"its plan \(budget\) is predicted to need .* The step runs again"
    with pytest.warns(tfgc.OutOfMemoryWarning, match=said):
        model, found, found_history = fitted(how, "trap0", where)
    needs = [tfgc.status(one).plans[-1].predicted_bytes for one in (model, before)]
    assert needs[0] < needs[1]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    assert {key: pytest.approx(values, rel=1e-5) for key, values in history.items()} == found_history


@pytest.mark.gate
def test_the_status_is_that_of_the_plan_in_use():
    with pytest.warns(tfgc.OutOfMemoryWarning) as warned:
        model = fitted("at the first step", "trap0", "forward")[0]
    (planned,) = tfgc.status(model).plans
    assert planned.plan.operations
    assert str(warned[0].message).endswith(f"is predicted to need {format_bytes(planned.predicted_bytes)}")


@pytest.mark.gate
@pytest.mark.parametrize("how", ["at the first step", "in a fat layer"])
def test_a_step_that_is_to_raise_explains_the_error(how):
    with pytest.raises(tf.errors.ResourceExhaustedError) as caught:
        fitted(how, "trap0", "backward", on_oom="raise")
    assert "its plan (budget) is predicted to need" in caught.value.message
    assert ", or on_oom='replan'" in caught.value.message


class HoldsOptimizers(Subclassed):
    """Has its optimizers in a dictionary, and fails after the first of its two updates."""

    def __init__(self):
        super().__init__()
        self.by_name, self.fails = {"one": keras.optimizers.SGD(0.1), "two": keras.optimizers.SGD(0.1)}, False

    def train_step(self, data):
        for name, optimizer in self.by_name.items():
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(self(data, training=True) ** 2)
            if self.fails and name == "two":
                self.fails = False
                raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")
            optimizer.apply(tape.gradient(loss, [v.value for v in self.trainable_variables]), self.trainable_variables)
        return {"loss": loss}


class PartIsCompiled(keras.Model):
    """Trains a part by the optimizer that the part is compiled with, and fails after the first of its two updates."""

    def __init__(self):
        super().__init__()
        self.part, self.fails = Subclassed(), False
        self.part.compile(keras.optimizers.SGD(0.1, momentum=0.9))

    def call(self, x, training=None):
        return self.part(x, training=training)

    def train_step(self, data):
        for i in range(2):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(self(data, training=True) ** 2)
            if self.fails and i == 1:
                self.fails = False
                raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")
            weights = self.part.trainable_variables
            self.part.optimizer.apply(tape.gradient(loss, [v.value for v in weights]), weights)
        return {"loss": loss}


@pytest.mark.gate
@pytest.mark.parametrize("kind", [HoldsOptimizers, PartIsCompiled])
def test_optimizers_that_a_model_is_not_compiled_with_have_updated_weights(kind):
    """A step that failed after an update was said to be taken back."""
    model = fresh(kind)
    model(X)
    model.compile(run_eagerly=True)
    tfgc.enable(model, on_oom="replan", verbose=0)
    model.fit(X, batch_size=64, verbose=0)
    model.fails = True
    with pytest.raises(tf.errors.ResourceExhaustedError, match="failed in its update, so some weights may be"):
        model.fit(X, batch_size=64, verbose=0)


def states_of_eager_steps(kind, where=None, steps=1):
    model = fresh(kind)
    model.compile(keras.optimizers.SGD(0.05), "mse", run_eagerly=True)
    tfgc.enable(model, budget="70%", on_oom="replan", verbose=0)
    if where:
        arm("trap2", where)
    model.fit(X, Y, batch_size=64, epochs=steps, shuffle=False, verbose=0)
    assert armed["trap"] is None
    return [np.array(v) for v in model.variables]


@pytest.mark.gate
@pytest.mark.parametrize("where", ["forward", "backward"])
def test_the_first_eager_step_of_a_model_that_is_not_built_can_be_taken_back(where):
    """Its statistics, which the failed step made, moved twice."""
    expected = states_of_eager_steps(Subclassed)
    with pytest.warns(tfgc.OutOfMemoryWarning, match="The step runs again"):
        found = states_of_eager_steps(Subclassed, where)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


class Late(Subclassed):
    """Builds a layer in its second step, and fails in it."""

    def build(self, shape):
        for block in self.blocks:
            block.build(shape)
        self.head.build(shape)

    def __init__(self):
        super().__init__()
        self.late, self.steps = L.BatchNormalization(), 0

    def train_step(self, data):
        self.steps += tf.executing_eagerly()
        if self.steps == 2 and tf.executing_eagerly():
            self.late(data[0], training=True)
            raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")
        return super().train_step(data)


@pytest.mark.gate
def test_an_eager_step_that_made_states_cannot_be_taken_back():
    with pytest.raises(
        tf.errors.ResourceExhaustedError,
        match=r"It made variables, such as .*moving_mean.*: build the layers",
    ):
        states_of_eager_steps(Late, steps=2)
