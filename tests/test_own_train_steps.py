"""A functional model whose own `train_step` calls it several times, or other layers beside it."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from equality import fresh, in_turn, mostly, noise
from faults import Trap, arm, armed
from memory import alone

import tfgc
from tfgc._units import format_bytes

L = keras.layers
SIZE, ROWS, DEPTH = 48, 8, 4
PAIRS = noise(2, ROWS, SIZE, SIZE, 3)


def encoder(kind, depth=DEPTH, trapped=False):
    x = inputs = L.Input((SIZE, SIZE, 3))
    for i in range(depth):
        x = L.Activation("gelu")(L.Conv2D(16, 3, padding="same")(x))
        x = Trap(name=f"trap{i}")(x) if trapped else x
    return kind(inputs, L.Dense(8)(L.GlobalAveragePooling2D()(x)), name="encoder")


class Pairs(keras.Model):
    """Keras's example of metric learning: anchors and positives, by two calls of one encoder."""

    def train_step(self, data):
        with tf.GradientTape() as tape:
            anchors, positives = self(data[0], training=True), self(data[1], training=True)
            loss = tf.reduce_mean((anchors - 2.0 * positives) ** 2)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


class Perceptual(keras.Model):
    """A network that is not trained, as part of the loss."""

    def train_step(self, data):
        x = data[0]
        with tf.GradientTape() as tape:
            made = tf.reshape(self(x, training=True), (-1, 1, 1, 8)) * tf.ones((1, SIZE, SIZE, 1))
            loss = tf.reduce_mean(self.judge(made) ** 2)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


class Noting(keras.Model):
    """A step that puts something on the model before it calls it, and reads it behind the call."""

    def train_step(self, data):
        self.target = 2.0 * data[1]
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(data[0], training=True) - self.target) ** 2)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


class Freezing(keras.Model):
    """A step that trains all but the last layer."""

    def train_step(self, data):
        self.layers[-1].trainable = False
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self(data[0], training=True) ** 2)
        weights = self.trainable_weights
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        self.layers[-1].trainable = True
        return {"loss": loss}


class HalfTrained(keras.Model):
    """Two calls, one of which says that it does not train, though it has gradients."""

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(data[0], training=True) - 2.0 * self(data[1], training=False)) ** 2)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


class ByKeyword(keras.Model):
    """A call by keyword, on twice the batch."""

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self(inputs=tf.concat([data[0], -data[0]], 0), training=True) ** 2)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


class Masked(keras.Model):
    """A layer of two inputs beside the model, one of which has a size that stays open."""

    def train_step(self, data):
        with tf.GradientTape() as tape:
            picked = tf.boolean_mask(self(data[0], training=True), data[1][:, 0] > 0.0)
            loss = tf.reduce_mean(self.scorer([picked, tf.ones((8, 8))]) ** 2)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


def compiled(model, **options):
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse", **{"jit_compile": False, **options})
    return model


def pairs(depth=DEPTH, **options):
    return compiled(fresh(lambda: encoder(Pairs, depth)), **options)


def perceptual():
    model = encoder(Perceptual, depth=2)
    x = inputs = L.Input((SIZE, SIZE, 8))
    for _ in range(6):
        x = L.Conv2D(16, 3, padding="same", activation="gelu")(x)
    model.judge = keras.Model(inputs, x, name="judge", trainable=False)
    return compiled(model)


def fit(model, x, steps=1, **options):
    """Train on `x` as the batch of each step."""
    data = tf.data.Dataset.from_tensors(x).repeat(steps)
    return model.fit(data, shuffle=False, verbose=0, **options).history


def measured(budget):
    """The peak of a step in `fit`, and what was predicted of it and of the plain step."""
    model = pairs(depth=8)
    if budget is not None:
        tfgc.enable(model, budget=budget, verbose=0)
    callback = tfgc.PeakMemory()
    fit(model, PAIRS, steps=7, callbacks=[callback])
    planned = tfgc.status(model).plans
    return callback.step_bytes, *((planned[0].predicted_bytes, planned[0].plain_bytes) if planned else (None, None))


@pytest.mark.gate
@pytest.mark.parametrize("budget", [pytest.param("65%", marks=pytest.mark.slow), "45%"])
def test_a_budget_is_one_of_all_calls(budget):
    plain, _, _ = alone(measured, None)
    found, predicted, predicted_plain = alone(measured, budget)
    assert predicted_plain == pytest.approx(plain, rel=0.05)
    assert predicted <= float(budget[:-1]) / 100 * predicted_plain
    assert found <= float(budget[:-1]) / 100 * plain * 1.03


def test_a_budget_that_no_plan_keeps_is_refused_with_the_least_for_all_calls():
    one_call = tfgc.plan(encoder(Pairs), batch_size=ROWS).outlook.needed_bytes
    model = tfgc.enable(pairs(), budget=one_call, verbose=0)
    with pytest.raises(tfgc.InfeasibleBudgetError, match="the smallest budget that works"):
        fit(model, PAIRS)


@pytest.mark.parametrize("asked", [{"nested": False}, pytest.param({"strategy": "budget"}, marks=pytest.mark.slow)])
def test_a_budget_of_a_strategy_is_one_of_all_calls(asked):
    model = tfgc.enable(pairs(), budget="60%", **asked, verbose=0)
    fit(model, PAIRS)
    (planned,) = tfgc.status(model).plans
    assert planned.plain_bytes > 1.7 * tfgc.estimate(encoder(Pairs), ROWS).needed_bytes
    assert 0.3 * planned.plain_bytes < planned.predicted_bytes <= 0.6 * planned.plain_bytes


HOW = [
    {},
    pytest.param({"run_eagerly": True}, marks=pytest.mark.gate),
    pytest.param({"jit_compile": True}, marks=pytest.mark.slow),
]


@pytest.mark.parametrize("how", HOW, ids=["graph", "compiled", "xla"])
def test_two_calls_train_as_without_a_plan(how):
    found = []
    for enabled in (False, True):
        model = pairs(**how)
        if enabled:
            tfgc.enable(model, verbose=0)
        history = fit(model, PAIRS, steps=3)
        found.append([history["loss"], *[v.numpy() for v in model.weights]])
    (planned,) = tfgc.status(model).plans
    assert planned.unchanged is None
    assert planned.predicted_bytes < 0.6 * planned.plain_bytes
    assert any(segment.mode == "recompute" for segment in planned.plan.segments)
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("kind", "run_eagerly"), in_turn([Noting, Freezing], [False, True]))
def test_what_a_step_notes_on_the_model_around_its_call_is_its_own(kind, run_eagerly):
    x, y = noise(ROWS, SIZE, SIZE, 3), noise(ROWS, 8)
    found = []
    for enabled in (False, True):
        model = compiled(fresh(lambda: encoder(kind)), run_eagerly=run_eagerly)
        model.optimizer.build(model.trainable_variables)
        if enabled:
            tfgc.enable(model, verbose=0)
        fit(model, (x, y), steps=2)
        found.append([v.numpy() for v in model.weights])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_what_the_loss_calls_counts():
    model = tfgc.enable(perceptual(), verbose=0)
    x = noise(ROWS, SIZE, SIZE, 3)
    fit(model, (x,))
    (planned,) = tfgc.status(model).plans
    assert planned.plain_bytes > 2 * tfgc.estimate(encoder(Perceptual, depth=2), ROWS).needed_bytes


def test_a_layer_beside_the_model_may_have_inputs_of_open_sizes():
    class Scores(L.Layer):
        def call(self, inputs):
            return tf.matmul(*inputs)

    model = compiled(encoder(Masked))
    model.scorer = Scores()
    tfgc.enable(model, verbose=0)
    fit(model, (noise(ROWS, SIZE, SIZE, 3), noise(ROWS, 1)))
    assert len(tfgc.status(model).plans) == 1


@pytest.mark.parametrize(
    "asked", [{}, {"budget": "50%"}, pytest.param({"strategy": "uniform", "segments": 2}, marks=pytest.mark.slow)]
)
def test_a_plan_says_what_the_whole_step_needs(asked):
    model = tfgc.enable(pairs(), **asked, verbose=0)
    fit(model, PAIRS)
    (planned,) = tfgc.status(model).plans
    outlook = planned.plan.outlook
    assert outlook.plain_bytes > 1.7 * tfgc.plan(encoder(Pairs), batch_size=ROWS).outlook.plain_bytes
    assert outlook.overhead == pytest.approx(planned.overhead)
    assert (outlook.needed_bytes, outlook.plain_needed_bytes) == (planned.predicted_bytes, planned.plain_bytes)
    assert (outlook.budget_bytes is None) == ("budget" not in asked)
    assert format_bytes(planned.predicted_bytes) in planned.plan.explain().splitlines()[1]


@pytest.mark.gate
@pytest.mark.parametrize("asked", [{}, pytest.param({"budget": "60%"}, marks=pytest.mark.slow)])
def test_a_status_says_that_xla_compiles_the_step(asked):
    model = tfgc.enable(pairs(jit_compile=True), **asked, verbose=0)
    fit(model, PAIRS)
    (planned,) = tfgc.status(model).plans
    assert planned.mode == "xla"
    assert planned.predicted_bytes < 0.65 * planned.plain_bytes


def test_fits_of_one_batch_size_are_traced_once():
    """Also where the call of the step has another number of rows than the batch, and reads data that code makes."""

    runs = []

    class First(keras.Model):
        def train_step(self, data):
            runs.append(data[0].shape)
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(self(data[0][:2], training=True) ** 2)
            self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
            return {"loss": loss}

    class Made(keras.utils.PyDataset):
        made = 0
        __hash__ = None  # as a dataclass has it

        def __len__(self):
            return 2

        def __getitem__(self, i):
            Made.made += 1
            return np.ones((8, SIZE, SIZE, 3), "float32"), np.ones((8, 1), "float32")

    model = tfgc.enable(compiled(encoder(First)), budget="80%", verbose=0)
    model.optimizer.build(model.trainable_variables)  # TensorFlow traces twice where variables are made
    data, made = Made(), []
    for _ in range(3):
        model.fit(data, verbose=0)
        made.append(Made.made)
    assert len(runs) == 1
    assert made[1] - made[0] == made[2] - made[1] <= made[0]


def test_a_call_that_says_it_does_not_train_counts_as_it_runs():
    plans = []
    for kind in (Pairs, HalfTrained):
        model = tfgc.enable(compiled(fresh(lambda: encoder(kind, 6))), verbose=0)  # noqa: B023
        fit(model, PAIRS)
        plans += tfgc.status(model).plans
    both, one = plans
    assert one.plain_bytes == pytest.approx(both.plain_bytes, rel=0.02)
    assert one.predicted_bytes == pytest.approx(both.predicted_bytes, rel=0.1)  # both calls have gradients


@pytest.mark.parametrize("sizes", mostly("known", modes=["known", "open"]))
def test_a_call_by_keyword_is_planned_for_what_it_is_given(sizes):
    x = noise(ROWS, SIZE, SIZE, 3)
    model = tfgc.enable(compiled(encoder(ByKeyword)), verbose=0)
    data = (x,) if sizes == "known" else (noise(2 * ROWS, SIZE, SIZE, 3),)
    dataset = tf.data.Dataset.from_tensor_slices(data).batch(ROWS, drop_remainder=sizes == "known")
    model.fit(dataset, verbose=0, shuffle=False)
    (planned,) = tfgc.status(model).plans
    assert planned.plain_bytes > 1.7 * tfgc.estimate(encoder(ByKeyword), ROWS).needed_bytes


def test_a_step_that_takes_its_data_apart_is_verified():
    model = pairs()
    verdict = tfgc.verify(model, None, PAIRS, modes="graph", steps=2)
    assert verdict
    assert verdict.is_exact
    assert "train_step" in str(verdict)


@pytest.mark.gate
@pytest.mark.parametrize("where", [pytest.param("forward", marks=pytest.mark.slow), "backward"])
def test_a_step_of_two_calls_runs_again_by_a_plan_that_needs_less(where):
    found = []
    for trap in (None, "trap3"):
        model = compiled(fresh(lambda: encoder(Pairs, trapped=True)))
        tfgc.enable(model, budget="80%", on_oom="replan", verbose=0)
        fit(model, PAIRS)
        before = tfgc.status(model).plans[0].predicted_bytes
        if trap is not None:
            arm(trap, where)
            with pytest.warns(tfgc.OutOfMemoryWarning, match="The step runs again by a plan"):
                fit(model, PAIRS)
            assert tfgc.status(model).plans[0].predicted_bytes < before
        else:
            fit(model, PAIRS)
        assert armed["trap"] is None
        found.append([v.numpy() for v in model.weights])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
