"""Enabled models in loops of the user's own: planned by the trace of a call, with the bits of a `tf.function`."""

import keras
import memory
import numpy as np
import pytest
import tensorflow as tf
from equality import fresh, in_turn, noise

import tfgc
from tfgc._framework import graph_optimizer
from tfgc._units import format_bytes

L = keras.layers
X, Y = noise(16, 24, 24, 3), noise(16, 4, seed=2)


def net():
    x = inputs = keras.Input((24, 24, 3))
    for i in range(4):
        y = L.Conv2D(16, 3, padding="same", use_bias=bool(i % 2))(x)
        y = L.Dropout(0.1, seed=i)(L.Activation("gelu")(L.BatchNormalization()(y)))
        x = L.Add()([x, y]) if i else y
    return keras.Model(inputs, L.Dense(4)(L.GlobalAveragePooling2D()(x)), name="net")


class Blocks(keras.Model):
    """The same kind of layers in a model without a graph, whose parts it calls by itself."""

    def __init__(self):
        super().__init__(name="blocks")
        self.convolutions = [L.Conv2D(16, 3, padding="same") for _ in range(4)]
        self.norms = [L.BatchNormalization() for _ in range(4)]
        self.drop, self.head = L.Dropout(0.1, seed=3), L.Dense(4)

    def call(self, x, training=None):
        for convolution, norm in zip(self.convolutions, self.norms):
            x = self.drop(tf.nn.gelu(norm(convolution(x), training=training)), training=training)
        return self.head(tf.reduce_mean(x, (1, 2)))


def blocks():
    model = Blocks()
    model(X[:1])
    return model


def gradients(model, x=X, weights=None, persistent=False):
    weights = [v.value for v in model.trainable_variables] if weights is None else weights
    with tf.GradientTape(persistent=persistent) as tape:
        loss = tf.reduce_mean((model(x, training=True) - Y[: len(x)]) ** 2)
    return tape.gradient(loss, weights)


def results(model, step):
    """Two steps: gradients, then states."""
    made = [tf.convert_to_tensor(g) for _ in range(2) for g in step(model)]
    return [t.numpy() for t in (*made, *model.variables)]


@pytest.mark.parametrize(("way", "build"), in_turn([{}, {"budget": "60%"}, {"strategy": "sqrt"}], [net, blocks]))
def test_an_eager_loop_gives_the_bits_of_a_function(way, build):
    with graph_optimizer.off():
        plain = results(fresh(build), tf.function(gradients))
        model = tfgc.enable(fresh(build), verbose=0, **way)
        found = results(model, gradients)
    (plan,) = tfgc.status(model).plans
    assert any(segment.mode == "recompute" for segment in plan.plan.segments)
    for expected, made in zip(plain, found, strict=True):
        np.testing.assert_array_equal(made, expected)


def peaks(build, way):
    model = fresh(build)
    if way is not None:
        tfgc.enable(model, verbose=0, **way)
    return memory.peak(lambda: gradients(model))


@pytest.mark.parametrize("build", [net, blocks])
def test_an_eager_loop_needs_less(build):
    plain, ours = (memory.alone(peaks, build, way) for way in (None, {}))
    assert ours < 0.5 * plain


def stored_beside_a_wide_result():
    """What an enabled model holds from forward to backward besides its result, in tensors that its blocks make."""
    x = inputs = keras.Input((128, 64))
    for _ in range(12):
        x = x + L.Dense(64, "gelu")(L.LayerNormalization()(x))
    model = tfgc.enable(keras.Model(inputs, L.Dense(1024)(x)), verbose=0)
    batch, stored = tf.random.normal((16, 128, 64)), []
    for _ in range(3):
        before = memory.info("current")
        with tf.GradientTape() as tape:
            made = model(batch, training=True)
            stored.append(memory.info("current") - before - 16 * 128 * 1024 * 4)
            loss = tf.reduce_mean(made**2)
        tape.gradient(loss, model.trainable_variables)
        del made, loss
    return stored[-1] / (16 * 128 * 64 * 4)


def test_little_is_stored_where_the_loss_takes_most():
    # Evenly cut there would be 10: results and losses of these weigh 16 such tensors each.
    assert memory.alone(stored_beside_a_wide_result) <= 4


def peak_of_poolings(is_enabled):
    """The peak of an eager step, in tensors such as each layer makes."""
    x = inputs = keras.Input((64, 64, 4))
    for _ in range(8):
        x = L.Conv2D(16, 3, padding="same", activation="relu")(x)
        x = L.MaxPooling2D(1)(x)
    model = keras.Model(inputs, L.Dense(4)(L.GlobalAveragePooling2D()(x)))
    model = tfgc.enable(model, verbose=0) if is_enabled else model
    batch = tf.random.normal((8, 64, 64, 4))
    return memory.peak(lambda: gradients(model, batch)) / (8 * 64 * 64 * 16 * 4)


def test_a_pooling_and_its_gradient_are_in_one_function():
    # Apart, TensorFlow looks for each maximum again, which takes three tensors more, here and in plain eager code.
    assert memory.alone(peak_of_poolings, False) > 20
    assert memory.alone(peak_of_poolings, True) < 9.5


def of_five(is_enabled):
    """The peak of five gradients of one persistent tape."""
    model = fresh(net)
    if is_enabled:
        tfgc.enable(model, verbose=0)
    weights = [v.value for v in model.trainable_variables]

    def step():
        with tf.GradientTape(persistent=True) as tape:
            y = model(X, training=True)
            losses = [tf.reduce_mean((y - k) ** 2) for k in range(5)]
        return [tape.gradient(loss, weights) for loss in losses]

    return memory.peak(step)


def recurrent():
    inputs = keras.Input((32, 64))
    x = L.Bidirectional(L.LSTM(64, return_sequences=True))(inputs)
    x = L.Dropout(0.1, seed=1)(x)
    return keras.Model(inputs, L.Dense(4)(L.LSTM(256)(L.GRU(64, return_sequences=True)(x))))


def recurrent_gradients(model):
    return gradients(model, noise(16, 32, 64))


def peak_of_recurrence(is_enabled):
    """What a step in a `tf.function` asks for, in weights, of which a loop made a gradient for each step of time."""
    model = fresh(recurrent)
    model = tfgc.enable(model, verbose=0) if is_enabled else model
    step = tf.function(lambda: recurrent_gradients(model))
    # Threads that are late let iterations of a loop wait for each other: the least of some steps is what it takes.
    asked = min(memory.requested(step) for _ in range(4))
    return asked / sum(4 * w.shape.num_elements() for w in model.trainable_variables)


def test_a_loop_stores_nothing_for_gradients_of_gradients_that_nobody_asks_for():
    plain, ours = (memory.alone(peak_of_recurrence, is_enabled) for is_enabled in (False, True))
    assert ours <= 1.05 * plain, (ours, plain)


def test_a_recurrent_model_gives_the_bits_of_a_function():
    with graph_optimizer.off():
        plain = results(fresh(recurrent), tf.function(recurrent_gradients))
        model = tfgc.enable(fresh(recurrent), verbose=0)
        found = results(model, recurrent_gradients)
    assert any(segment.mode == "recompute" for segment in tfgc.status(model).plans[0].plan.segments)
    for expected, made in zip(plain, found, strict=True):
        np.testing.assert_array_equal(made, expected)


def test_five_gradients_of_one_tape_never_need_more():
    plain, ours = (memory.alone(of_five, is_enabled) for is_enabled in (False, True))
    assert ours <= plain


def test_five_gradients_of_one_tape_are_the_plain_ones():
    plain, model = fresh(net), tfgc.enable(fresh(net), verbose=0)

    def step(model):
        weights = [v.value for v in model.trainable_variables]
        with tf.GradientTape(persistent=True) as tape:
            y = model(X, training=True)
            losses = [tf.reduce_mean((y - k) ** 2) for k in range(5)]
        return [g for loss in losses for g in tape.gradient(loss, weights)]

    with graph_optimizer.off():
        for expected, made in zip(results(plain, tf.function(step)), results(model, step), strict=True):
            np.testing.assert_array_equal(made, expected)


def test_weights_that_nobody_asks_for_have_no_gradient_made():
    """Plain code makes gradients of frozen weights, too, if they are asked for."""
    model, plain = tfgc.enable(fresh(net), verbose=0), fresh(net)
    for one in (model, plain):
        for layer in one.layers[:10]:
            layer.trainable = False
    frozen = [one.layers[1].kernel.value for one in (model, plain)]
    made, expected = (gradients(one) for one in (model, plain))
    for g, e in zip(made, expected, strict=True):
        np.testing.assert_allclose(g, e, rtol=1e-4, atol=1e-6)
    found, wanted = (gradients(one, weights=[v])[0] for one, v in zip((model, plain), frozen))
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "use",
    [lambda m: tfgc.enable(m, verbose=0).call, tfgc.recompute, lambda m: tfgc.recompute(lambda *a, **k: m(*a, **k))],
    ids=["enabled", "model", "function"],
)
def test_a_loop_over_arrays_is_traced_once(use):
    x, model, made = np.asarray(X), net(), []
    call = use(model)
    model.layers[1].call = lambda x, call=model.layers[1].call: made.append(1) or call(x)
    for _ in range(3):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(call(x, training=True))
        tape.gradient(loss, model.trainable_variables)
    assert len(made) == 1


class Positions(L.Layer):
    """Adds tensors that it holds, as encodings of positions, and counts how often its code runs."""

    def __init__(self):
        super().__init__()
        self.encodings, self.calls = {"all": [tf.random.stateless_normal((24, 24, 16), (1, 2))]}, []

    def call(self, x):
        self.calls.append(1)
        return x + self.encodings["all"][0]


@pytest.mark.parametrize("use", [lambda m: tfgc.enable(m, verbose=0), tfgc.recompute], ids=["enabled", "model"])
def test_a_model_that_holds_tensors_is_traced_once(use):
    def build():
        x = inputs = keras.Input((24, 24, 3))
        x = L.Normalization(mean=[0.1, 0.2, 0.3], variance=[1.0, 2.0, 3.0])(x)
        for _ in range(3):
            x = L.Conv2D(16, 3, padding="same", activation="gelu")(x)
        return keras.Model(inputs, L.Dense(4)(L.GlobalAveragePooling2D()(Positions()(x))))

    def made(call, model):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((call(X, training=True) - Y) ** 2)
        return tape.gradient(loss, model.trainable_variables)

    plain, model = fresh(build), fresh(build)
    call, positions = use(model), model.get_layer("positions")
    positions.calls.clear()
    changes = [
        lambda layer: None,
        lambda layer: None,
        lambda layer: layer.encodings.update({"all": [tf.ones((24, 24, 16))]}),
        lambda layer: setattr(layer, "encodings", {"all": [tf.zeros((24, 24, 16))]}),
        lambda layer: None,
    ]
    for change in changes:
        change(positions)
        change(plain.get_layer("positions"))
        for g, e in zip(made(call, model), made(plain, plain), strict=True):
            np.testing.assert_allclose(g, e, rtol=1e-4, atol=1e-6)
    assert len(positions.calls) == 3  # once, and for each of two changes
    for one in (model, plain):
        one.layers[1].mean = one.layers[1].mean + 0.5
    for g, e in zip(made(call, model), made(plain, plain), strict=True):
        np.testing.assert_allclose(g, e, rtol=1e-4, atol=1e-6)


def test_a_larger_batch_is_planned_again_within_a_budget(capsys):
    model = fresh(net)
    tfgc.enable(model, budget="20MB")
    for rows in (4, 4, 2):
        gradients(model, X[:rows])
    assert capsys.readouterr().err.count("tfgc: 'net'") == 2  # a size of its own is traced for itself
    gradients(model, X)
    (*_, latest) = tfgc.status(model).plans
    assert latest.batch_size == len(X)
    assert latest.predicted_bytes <= 20_000_000
    with pytest.raises(tfgc.InfeasibleBudgetError):
        gradients(tfgc.enable(fresh(net), budget="1MB"))


def held_in_loops():
    """For budgets what the status says, and what steps really need, in a loop that is not compiled."""
    found = []
    for budget in ("60%", "20MB", "12MB"):
        model = keras.Sequential([keras.Input((64,)), *(L.Dense(64, "gelu") for _ in range(12))])
        tfgc.enable(model, budget=budget, verbose=0)
        x, needed = tf.random.stateless_normal((4096, 64), (1, 2)), []
        try:
            for _ in range(6):
                with tfgc.peak() as peak, tf.GradientTape() as tape:
                    loss = tf.reduce_mean(model(x, training=True) ** 2)
                    tape.gradient(loss, [v.value for v in model.trainable_variables])
                needed.append(peak.peak_bytes - peak.held_bytes)
            found.append((tfgc.status(model).plans[0], needed))
        except tfgc.InfeasibleBudgetError as error:
            found.append(str(error))
    return found


@pytest.mark.slow
def test_budgets_hold_in_loops_by_what_steps_are_measured_to_need():
    *held, refused = memory.alone(held_in_loops)
    for now, needed in held:
        budget = now.plan.outlook.budget_bytes
        assert max(needed[4:]) <= now.measured_bytes <= budget
        assert f"budget held: {format_bytes(now.measured_bytes)} measured" in str(now)
        assert tfgc.Plan.from_json(now.plan.to_json()).outlook.ratio == now.plan.outlook.ratio > 0
    assert len(set(held[1][1])) > 1  # It left room for less work.
    assert "measured; variables" in refused


class Undecided(keras.Model):
    """Its code asks for values, and its parts do not."""

    def __init__(self):
        super().__init__(name="undecided")
        self.first, self.second = Blocks(), Blocks()

    def call(self, x, training=None):
        y = self.first(x, training=training)
        return y if float(tf.reduce_sum(y)) > 1e9 else y + self.second(x, training=training)


def undecided():
    model = Undecided()
    model(X[:1])
    return model


def test_a_model_that_cannot_be_traced_is_recomputed_part_by_part(replays):
    plain, model = fresh(undecided), tfgc.enable(fresh(undecided), verbose=0)
    expected = gradients(plain)
    with pytest.warns(tfgc.NotReplayableWarning, match="'?undecided'? is recomputed part by part: it cannot be traced"):
        made = gradients(model)
    assert replays
    for g, e in zip(made, expected, strict=True):
        np.testing.assert_allclose(g, e, rtol=1e-4, atol=1e-6)
    tfgc.disable(model)
    replays.clear()
    gradients(model)
    assert not replays


def test_a_call_in_which_nothing_is_recomputed_runs_as_it_was_traced():
    """A pooling that was put into its order made an order of it, in which a loop ran before what it takes."""

    def gradients(change):
        keras.utils.set_random_seed(2)
        x = keras.Input((6, 4))
        model = change(keras.Model(x, keras.layers.GRU(3)(keras.layers.MaxPooling1D(2, 1)(x))))

        @tf.function
        def step():
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(model(tf.reshape(tf.range(48.0), (2, 6, 4)) / 48, training=True) ** 2)
            return tape.gradient(loss, [v.value for v in model.trainable_variables])

        return step()

    with graph_optimizer.off():
        plain = gradients(lambda model: model)
        ours = gradients(lambda model: tfgc.enable(model, strategy="keep_all", verbose=0))
    for one, other in zip(plain, ours, strict=True):
        np.testing.assert_array_equal(one, other)


def peak_where_nothing_is_saved(is_enabled):
    """The peak of a step with many weights and few activations, of which graphs free each gradient when it is used."""
    model = keras.Sequential([keras.Input((256,)), *(L.Dense(256, "relu") for _ in range(12))])
    model = tfgc.enable(model, verbose=0, strategy="keep_all") if is_enabled else model
    batch = tf.random.stateless_normal((16, 256), (1, 2))

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(batch, training=True) ** 2)
        weights = [v.value for v in model.trainable_variables]
        for v, gradient in zip(weights, tape.gradient(loss, weights)):
            v.assign_sub(0.1 * gradient)
        return loss

    return memory.peak(step)


def test_a_step_in_which_nothing_is_saved_needs_no_more_than_plain():
    plain, ours = (memory.alone(peak_where_nothing_is_saved, is_enabled) for is_enabled in (False, True))
    assert ours <= 1.05 * plain, (ours, plain)
