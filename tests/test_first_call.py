"""`enable` without a plan: planned at the first training call, for what is seen there."""

import os
import random
import signal
import threading
import time
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from equality import assert_equal, fresh, in_turn, mostly, noise, train
from models import Halved
from tensorflow.python.eager import context

import tfgc
from tfgc._core.ignored_warnings import ignored_warnings
from tfgc._core.segments import Segment
from tfgc._framework import graph_optimizer
from tfgc._planning import free_memory
from tfgc._planning.promised import PlannedStep
from tfgc._training import plan_report, planned_calls

L = keras.layers
X, Y = noise(24, 16, 16, 3), noise(24, 4, seed=2)


def cnn(blocks=4, **compiled):
    keras.utils.clear_session(free_memory=False)  # two of them have the same names
    inputs = x = keras.Input((16, 16, 3))
    for _ in range(blocks):
        x = L.BatchNormalization()(L.Conv2D(8, 3, padding="same", activation="relu")(x))
    x = L.Dropout(0.3)(L.GlobalAveragePooling2D()(x))
    model = keras.Model(inputs, L.Dense(4)(x), name="cnn")
    if compiled:
        model.compile(**{"optimizer": "sgd", "loss": "mse", **compiled})
    return model


def text():
    """Takes tokens of any length."""
    layers = [L.Embedding(20, 32)] + [L.Dense(64, activation="gelu") for _ in range(4)]
    return keras.Sequential([keras.Input((None,), dtype="int32"), *layers, L.GlobalAveragePooling1D(), L.Dense(1)])


def plans(model):
    return tfgc.status(model).plans


def trained_for(model, x, mode):
    """One step in a mode; gradients of the weights."""

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x, training=True))
        return tape.gradient(loss, model.trainable_variables)

    return (step if mode in ("eager", "compiled") else tf.function(step, jit_compile=mode == "xla"))(x)


UNIFORM, BUDGET = {"strategy": "uniform", "segments": 3}, {"budget": 0.7}


@pytest.mark.parametrize(
    ("how", "mode"),
    [
        pytest.param({}, "xla", marks=pytest.mark.gate),
        (UNIFORM, "compiled"),
        (BUDGET, "graph"),
        *(pytest.param({}, mode, marks=pytest.mark.slow) for mode in ("compiled", "graph")),
        *(pytest.param(UNIFORM, mode, marks=pytest.mark.slow) for mode in ("graph", "xla")),
        pytest.param(BUDGET, "compiled", marks=pytest.mark.slow),
    ],
)
def test_gradients_states_and_random_draws_are_those_of_the_plain_model(how, mode):
    ours = tfgc.enable(fresh(cnn), **how)
    if mode == "xla":
        expected = train(fresh(cnn), X[:8], [Y[:8]], graph=True, jit_compile=True)
        found = train(ours, X[:8], [Y[:8]], graph=True, jit_compile=True)
        plain = fresh(cnn)  # by TensorFlow's kernels, with what XLA draws
        plain.layers[-2].call = tf.function(plain.layers[-2].call, jit_compile=True)
        assert_equal(expected, found, exact=False, spread=[train(plain, X[:8], [Y[:8]], graph=True)])
    else:
        with graph_optimizer.off():
            expected = train(fresh(cnn), X[:8], [Y[:8]], graph=True)
            found = train(ours, X[:8], [Y[:8]], graph=mode != "compiled")
        assert_equal(expected, found, exact=True)
    (made,) = plans(ours)
    assert made.mode == mode
    assert any(segment.mode == "recompute" for segment in made.plan.segments)


@pytest.mark.gate
def test_an_optimizer_that_cannot_be_copied_counts_as_adam():
    """`fit` ended with Keras's TypeError."""
    model, plain = (fresh(lambda: cnn(optimizer=Halved(0.02))) for _ in range(2))
    tfgc.enable(model, budget="90%", verbose=0)
    for one in (model, plain):
        one.fit(X, Y, epochs=2, shuffle=False, verbose=0)
    for ours, expected in zip(model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-6)
    assert (
        tfgc.estimate(model, 24, optimizer=Halved(0.02)).fixed_bytes
        == tfgc.estimate(model, 24, optimizer="adam").fixed_bytes
    )


class Batches(keras.utils.PyDataset):
    """Says nothing of its batch size; its batches do."""

    def __len__(self):
        return 2

    def __getitem__(self, i):
        return X[:6], Y[:6]


def datasets():
    data, x, y = map(tf.data.Dataset.from_tensor_slices, ((X, Y), X, Y))
    return {
        "batch": data.batch(6),
        "a pipeline": data.shuffle(9).batch(6, num_parallel_calls=2).map(lambda x, y: (x, y)).cache().prefetch(1),
        "batches anew": data.batch(8).unbatch().batch(6).repeat(),
        "no remainder": data.batch(6, drop_remainder=True),
        "batches side by side": tf.data.Dataset.zip((x.batch(6), y.batch(6))).map(lambda x, y: (x + 1, y)),
        "batches one after the other": data.batch(5).concatenate(data.batch(6)),
        "batches at random": tf.data.Dataset.sample_from_datasets([data.batch(6).repeat(), data.batch(4).repeat()]),
        "PyDataset": Batches(),
    }


@pytest.mark.parametrize("kind", ["arrays", "generator", "train_on_batch", *datasets()])
def test_fit_knows_the_batch_size_of(kind):
    model = tfgc.enable(cnn(blocks=2, loss="mse"), budget="80%")
    if kind == "arrays":
        model.fit(X, Y, batch_size=6, verbose=0)
    elif kind == "generator":
        model.fit(((X[:6], Y[:6]) for _ in range(9)), verbose=0, steps_per_epoch=2, shuffle=False)
    elif kind == "train_on_batch":
        model.train_on_batch(X[:6], Y[:6])
    else:
        model.fit(datasets()[kind], verbose=0, shuffle=False, steps_per_epoch=2)
    assert [made.batch_size for made in plans(model)] == [6]


def test_the_first_part_of_a_batch_may_be_missing():
    class Added(L.Layer):
        def call(self, x, other=None):
            return x if other is None else x + other

    x, other = keras.Input((64,), name="x"), keras.Input((64,), name="a", optional=True)
    y = Added()(x, other)
    for _ in range(4):
        y = L.Dense(64, activation="gelu")(y)
    model = keras.Model({"x": x, "a": other}, L.Dense(1)(y))
    model.compile("sgd", "mse")
    batches = (({"x": np.ones((300, 64)), "a": None}, np.ones((300, 1))) for _ in range(3))
    tfgc.enable(model, verbose=0).fit(batches, shuffle=False, steps_per_epoch=2, verbose=0)
    assert [made.batch_size for made in plans(model)] == [300]


@pytest.mark.parametrize("kind", ["U", "O", "S"])
def test_arrays_of_strings_are_looked_up(kind):
    words = keras.Input((3,), dtype="string")
    x = L.Embedding(5, 64)(L.StringLookup(vocabulary=["a", "b", "c"])(words))
    for _ in range(4):
        x = L.Dense(64, activation="gelu")(x)
    model = keras.Model(words, L.Dense(1)(L.GlobalAveragePooling1D()(x)))
    given = np.array([["a", "b", "c"], ["a", "x", "c"]] * 16).astype(kind)
    expected = model(given, training=True)
    tfgc.enable(model, verbose=0)
    np.testing.assert_allclose(model(given, training=True), expected, rtol=1e-5)
    with tf.GradientTape():
        assert model(tf.constant(given.astype("O")), training=True).shape == expected.shape
    (made,) = plans(model)
    assert made.unchanged is None


class Drawn(keras.utils.PyDataset):
    """Draws its batches from the streams of Python, NumPy and TensorFlow, whose tensors it reads."""

    def __len__(self):
        return 3

    def __getitem__(self, i):
        drawn = random.random() + np.random.rand() + float(tf.random.uniform(()).numpy())
        return X[:6] * np.float32(drawn), Y[:6]


@pytest.mark.parametrize("options", mostly({"budget": "90%"}, modes=[{}, {"budget": "90%"}]), ids=["planned", "budget"])
def test_a_dataset_that_draws_gives_the_batches_of_plain_training(options):
    """Its first batch was made once more in each fit, which moved the streams."""

    def fit(enabled):
        keras.utils.set_random_seed(3)
        model = cnn(loss="mse")
        if enabled:
            tfgc.enable(model, **options)
        losses = [model.fit(Drawn(), verbose=0, shuffle=False).history["loss"] for _ in range(2)]
        return losses, (random.random(), np.random.rand(), float(tf.random.uniform(())))

    (ours, our_next), (plain, plain_next) = fit(True), fit(False)
    np.testing.assert_allclose(ours, plain, rtol=1e-4)
    assert our_next == plain_next


def test_a_dataset_can_be_fitted_where_no_seed_was_ever_set(monkeypatch):
    """TensorFlow has no stream of seeds then, which has to be put back elsewhere."""
    model = tfgc.enable(cnn(loss="mse"))
    monkeypatch.setattr(context.context(), "_seed", None)
    monkeypatch.delattr(context.context(), "_rng", raising=False)
    model.fit(Batches(), verbose=0, shuffle=False)
    assert [made.batch_size for made in plans(model)] == [6]


def test_a_batch_size_that_nothing_says_is_an_error_where_there_is_a_budget():
    windows = tf.data.Dataset.from_tensors((X, Y)).unbatch().window(4)
    data = windows.flat_map(lambda x, y: tf.data.Dataset.zip((x.batch(4), y.batch(4))))
    model = tfgc.enable(cnn(loss="mse"), budget="80%")
    with pytest.raises(tfgc.OptionError, match=r"budget='80%'.*drop_remainder=True.*tfgc\.plan\(model, example=batch"):
        model.fit(data, verbose=0, shuffle=False, steps_per_epoch=2)
    model = tfgc.enable(cnn(loss="mse"))
    model.fit(data, verbose=0, shuffle=False, steps_per_epoch=2)
    (made,) = plans(model)
    assert (made.batch_size, made.predicted_bytes) == (None, None)


def test_batches_of_two_sizes_side_by_side_have_none():
    x, y = map(tf.data.Dataset.from_tensor_slices, (X, Y))
    model = tfgc.enable(cnn(loss="mse"), budget="80%")
    with pytest.raises(tfgc.OptionError, match="traced without a batch size"):
        model.fit(tf.data.Dataset.zip((x.batch(6), y.batch(3))), verbose=0, shuffle=False)


@pytest.mark.gate
def test_batches_of_many_sizes_run_by_one_plan_and_a_larger_one_is_planned_anew_within_a_budget(capsys):
    model = tfgc.enable(cnn(), budget=1_000_000)
    sizes = []
    for batch in (8, 4, 8, 12, 8, 6, 16, 12):
        trained_for(model, X[:batch], "compiled")
        (made,) = plans(model)
        sizes.append(made.batch_size)
    assert sizes == [8, 4, 8, 12, 12, 12, 16, 16]
    assert capsys.readouterr().err.count("planned in") == 4
    model = tfgc.enable(cnn())
    for batch in (4, 8, 12, 16):
        trained_for(model, X[:batch], "compiled")
    assert [made.batch_size for made in plans(model)] == [12]


@pytest.mark.gate
def test_each_signature_has_its_plan_up_to_a_limit(monkeypatch):
    monkeypatch.setattr(planned_calls, "_MOST_PLANS", 3)
    model = tfgc.enable(text(), strategy="uniform", verbose=0)
    tokens = np.ones((2, 64), "int32")
    for length in (8, 16, 12):
        trained_for(model, tokens[:, :length], "compiled")
    assert [made.sizes for made in plans(model)] == [(((n,), "int32"),) for n in (8, 16, 12)]
    trained_for(model, tokens[:, :10], "compiled")  # the plan for 12 is for any length
    assert len(plans(model)) == 3
    trained_for(model, tokens[:, :20], "graph")  # the one that was not used for longest goes
    left = [((16,), "compiled"), ((12,), "compiled"), ((20,), "graph")]
    assert [(made.sizes[0][0], made.mode) for made in plans(model)] == left


def test_inference_and_symbolic_calls_plan_nothing():
    model = tfgc.enable(cnn(loss="mse"))
    model.predict(X, verbose=0)
    model.evaluate(X, Y, verbose=0)
    model(X, training=False)
    model(keras.Input((16, 16, 3)))
    model.summary(print_fn=lambda line: None)
    assert str(tfgc.status(model)) == "cnn: enabled, to be planned at its first training call"


def test_a_sequential_model_may_be_enabled_before_it_is_built():
    model = keras.Sequential([L.Conv2D(8, 3, padding="same", activation="relu") for _ in range(4)] + [L.Flatten()])
    model.compile("sgd", "mse")
    tfgc.enable(model)
    for size, batch in ((16, 4), (16, 8), (12, 2)):  # Keras declares it for the first of these
        trained_for(model, X[:batch, :size, :size], "compiled")
    assert [made.sizes[0][0] for made in plans(model)] == [(16, 16, 3), (12, 12, 3)]
    assert all(made.predicted_bytes < made.plain_bytes for made in plans(model))


@pytest.mark.gate
def test_auto_keeps_everything_where_everything_fits(monkeypatch):
    model = tfgc.enable(cnn(loss="mse"), budget="auto")
    model.fit(X, Y, verbose=0)
    assert all(segment.mode == "keep" for segment in plans(model)[0].plan.segments)
    plain = plans(model)[0].plain_bytes
    monkeypatch.setattr(free_memory, "free_bytes", lambda: int(0.7 * plain))
    tfgc.enable(model, budget="auto").fit(X, Y, verbose=0)
    (made,) = plans(model)
    assert any(segment.mode == "recompute" for segment in made.plan.segments)
    assert 0.35 * plain < made.predicted_bytes <= 0.7 * plain


@pytest.mark.gate
def test_a_budget_that_nothing_fits_in_raises_its_error_out_of_every_loop():
    for mode in ("compiled", "graph"):
        with pytest.raises(tfgc.InfeasibleBudgetError, match="no plan fits in") as error:
            trained_for(tfgc.enable(cnn(), budget=20_000), X[:8], mode)
        assert (error.value.budget, error.value.least > 20_000) == (20_000, True)
        assert any(layer.name in error.value.node for layer in cnn().layers)
    model = tfgc.enable(cnn(loss="mse"), budget=20_000)
    with pytest.raises(tfgc.InfeasibleBudgetError, match=r"^no plan fits in 20,000 bytes"):
        model.fit(X, Y, verbose=0)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"strategy": "uniform", "segment": 3}, "takes no option 'segment'; did you mean 'segments'"),
        ({"segments": 3}, "strategy 'optimal' takes no option 'segments'"),
        ({"budgt": "60%"}, "takes no option 'budgt'; did you mean 'budget'"),
        (
            {"budget": "4 giga"},
            "must be a positive number of bytes.*, a share of the plain step such as '70%'.* or 'auto'",
        ),
        ({"budget": 60}, "or '60%' for that share of the plain step"),
        ({"budget": 1.5e-9}, None),
        ({"budget": "-5%"}, "a share is a positive part"),
        ({"budget": "4GB", "strategy": "sqrt"}, "does not honour a budget"),
        ({"verbose": 2}, "must be 0 or 1"),
        ({"layers": ["dense"], "segments": 2}, "leave plan, strategy and its options out"),
    ],
)
def test_mistakes_are_named_by_enable_itself(asked, message):
    model = cnn()
    if message is None:
        tfgc.enable(model, **asked)
        return
    with pytest.raises(tfgc.OptionError, match=message):
        tfgc.enable(model, **asked)
    assert not tfgc.status(model).enabled


def test_a_plan_and_what_to_plan_by_exclude_each_other():
    model = cnn()
    with pytest.raises(tfgc.OptionError, match=r"give a plan, or what to plan by \(strategy='sqrt', segments=2\)"):
        tfgc.enable(model, tfgc.plan(model), strategy="sqrt", segments=2)


@pytest.mark.gate
def test_one_line_says_what_was_planned_and_verbose_0_says_nothing(capsys):
    model = tfgc.enable(cnn(loss="mse"))
    model.fit(X, Y, batch_size=8, verbose=0)
    line = capsys.readouterr().err
    assert line.startswith("tfgc: 'cnn' by 'optimal', needs ")
    for part in ("B of ", " % more work, batch of 8, planned in "):
        assert part in line
    model = tfgc.enable(cnn(loss="mse"), verbose=0)
    model.fit(X, Y, batch_size=8, verbose=0)
    assert capsys.readouterr() == ("", "")


def test_a_line_does_not_say_that_nothing_is_recomputed_where_that_takes_no_work():
    for how, said in (("recompute", "0 % more work"), ("keep", "nothing recomputed")):
        plan = tfgc.Plan((Segment(("reshape",), how),), "optimal", ())
        assert f", {said}, " in plan_report.line("net", PlannedStep(plan, "graph", 8, 1000, 2000, 0.0, 1.0))


def heavy():
    """Weights are nearly all that its step needs."""
    return keras.Sequential([keras.Input((8,)), L.Dense(200), L.Dense(200), L.Dense(200)], name="heavy")


def one_layer():
    """One layer needs nearly all of the activations."""
    return keras.Sequential([keras.Input((64, 64, 1)), L.Conv2D(32, 3, activation="relu"), L.Flatten()], name="one")


@pytest.mark.parametrize(
    ("build", "x", "why"),
    [
        (heavy, noise(2, 8), "weights and optimizer slots are"),
        (one_layer, noise(4, 64, 64, 1), "recomputing would save less than 5 %"),
    ],
)
def test_where_little_would_be_saved_nothing_is_changed_and_the_reason_is_given(build, x, why):
    model = tfgc.enable(build())
    with pytest.warns(tfgc.NothingSavedWarning, match=f"trains as before.*{why}") as caught:
        trained_for(model, x, "graph")
    assert caught[0].filename == __file__
    (made,) = plans(model)
    assert made.unchanged
    assert made.unchanged in str(tfgc.status(model))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trained_for(model, x, "graph")  # once
        trained_for(tfgc.enable(build(), strategy="uniform"), x, "graph")  # asked for by name


def test_planning_moves_no_state_of_the_caller():
    def after(model):
        keras.utils.set_random_seed(5)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(X, training=True))
        tape.gradient(loss, model.trainable_variables)
        return keras.random.normal((3,)).numpy().tolist(), np.random.rand(), L.Dense(1).name

    found = []
    for enabled in (False, True):
        model = cnn()
        if enabled:
            tfgc.enable(model, budget="90%")
        found.append(after(model))
    assert found[0] == found[1]


class Blocks(L.Layer):
    """A layer full of layers, which is planned by their calls."""

    def __init__(self, count=4):
        super().__init__()
        self.blocks = [L.Dense(32, activation="gelu") for _ in range(count)]

    def call(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def dense(count):
    return [L.Dense(32, activation="gelu") for _ in range(count)]


@pytest.mark.parametrize("mode", mostly("compiled", modes=["compiled", "graph"]))
@pytest.mark.parametrize(
    ("first", "added"),
    [
        pytest.param(lambda: dense(1), lambda: dense(8), id="unchanged"),
        pytest.param(lambda: [Blocks(3)], lambda: [Blocks(4), L.Dense(32)], id="calls"),
        pytest.param(lambda: dense(4), lambda: [Blocks(12)], id="then calls"),
    ],
)
def test_what_was_planned_for_fewer_layers_is_planned_again(first, added, mode):
    x = noise(512, 16, 32)

    def planned_for(is_trained_before):
        model = tfgc.enable(fresh(lambda: keras.Sequential([keras.Input((16, 32)), *first()], name="net")), verbose=0)
        if is_trained_before:
            with ignored_warnings():
                trained_for(model, x, mode)
        for layer in added():
            model.add(layer)
        assert len(trained_for(model, x, mode)) == len(model.trainable_variables)
        (made,) = plans(model)
        return made.plan, made.predicted_bytes, made.plain_bytes, made.unchanged

    expected = planned_for(is_trained_before=False)
    assert expected[-1] is None
    assert planned_for(is_trained_before=True) == expected


class OwnStep(keras.Model):
    """Its step takes more than a batch."""

    def __init__(self):
        super().__init__()
        self.blocks = [L.Dense(32, activation="gelu") for _ in range(6)]

    def call(self, x):
        for block in self.blocks:
            x = block(x)
        return x

    def train_step(self, x, y, *, weight):
        with tf.GradientTape() as tape:
            loss = weight * tf.reduce_mean((self(x, training=True) - y) ** 2)
        self.optimizer.apply(tape.gradient(loss, [v.value for v in self.trainable_variables]), self.trainable_variables)
        return loss


@pytest.mark.gate
@pytest.mark.parametrize("how", ["eager", "graph"])
def test_a_train_step_that_takes_more_than_a_batch(how):
    x, losses = noise(4096, 32), []
    for enabled in (False, True):
        model = fresh(OwnStep)
        model(x)
        model.optimizer = keras.optimizers.SGD(0.1)
        model.optimizer.build(model.trainable_variables)
        if enabled:
            tfgc.enable(model, verbose=0)
        step = model.train_step if how == "eager" else tf.function(model.train_step)
        losses.append([float(step(x, x, weight=2.0)) for _ in range(3)])
    assert plans(model)[0].unchanged is None
    np.testing.assert_allclose(*losses, rtol=1e-5)


class OwnWeights(keras.Model):
    """A step that calls no layers, nor the model."""

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], shape[-1]), name="kernel")

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.tanh(x @ self.kernel) - y) ** 2)
        self.optimizer.apply(tape.gradient(loss, [self.kernel.value]), [self.kernel])
        return {"loss": loss}


def test_a_model_that_calls_no_layers_trains_as_a_whole():
    losses = []
    for enabled in (False, True):
        model = fresh(OwnWeights)
        model.compile("sgd")
        model.build((24, 3))
        if enabled:
            tfgc.enable(model, verbose=0)
        losses.append(model.fit(X[:, 0, 0], X[:, 0, 0], verbose=0, shuffle=False).history["loss"])
    assert losses[0] == losses[1]


class Messages(L.Layer):
    """Sums what the bonds of each atom bring from its neighbors."""

    def call(self, inputs):
        atoms, bonds, pairs = inputs
        return tf.math.unsorted_segment_sum(bonds * tf.gather(atoms, pairs[:, 1]), pairs[:, 0], tf.shape(atoms)[0])

    def compute_output_shape(self, shapes):
        return shapes[0]


def molecules():
    atoms, bonds, pairs = keras.Input((16,)), keras.Input((16,)), keras.Input((2,), dtype="int32")
    x = atoms
    for _ in range(4):
        x = L.Dense(16, "tanh")(L.LayerNormalization()(Messages()([x, bonds, pairs])))
    return keras.Model([atoms, bonds, pairs], L.Dense(1)(x))


ATOMS, BONDS = noise(400, 16), noise(600, 16, seed=3)
PAIRS = tf.constant(np.random.default_rng(0).integers(0, 400, (600, 2)), "int32")


@pytest.mark.gate
@pytest.mark.parametrize(("mode", "budget"), in_turn(["eager loop", "fit", "fit under XLA"], ["80%", None]))
def test_inputs_may_differ_in_their_first_sizes(budget, mode):
    """As in Keras's example of molecular graphs, where a batch is one graph of atoms and bonds."""

    def losses(enabled):
        model = fresh(molecules)
        model.compile(keras.optimizers.SGD(0.1), "mse", run_eagerly=mode == "eager loop", jit_compile="XLA" in mode)
        if enabled:
            tfgc.enable(model, budget=budget, verbose=0)
        data = tf.data.Dataset.from_tensors(((ATOMS, BONDS, PAIRS), ATOMS[:, :1])).repeat(3)
        found = model.fit(data, epochs=2, shuffle=False, verbose=0).history["loss"]
        if enabled:
            assert plans(model)[0].plan.operations
            assert plans(model)[0].predicted_bytes < 0.8 * plans(model)[0].plain_bytes
        return found

    np.testing.assert_allclose(losses(True), losses(False), rtol=1e-5)


class SlowToTrace(keras.Model):
    """Takes long where its step is traced to be planned, and is interrupted meanwhile."""

    ended = threading.Event()

    def train_step(self, data):
        if threading.current_thread() is not threading.main_thread():
            try:
                os.kill(os.getpid(), signal.SIGINT)
                for _ in range(100):
                    time.sleep(0.02)
            finally:
                self.ended.set()
        return super().train_step(data)


@pytest.fixture
def interruptible():
    """Shells let what they start in the background ignore interrupts, and Python then sets no handler."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.filterwarnings("ignore::tfgc.NothingSavedWarning")  # the interrupt may come after planning
def test_an_interrupt_ends_planning_before_it_goes_on(interruptible):
    """A trace that went on would put back methods that have been replaced since."""
    inputs = keras.Input((8,))
    model = SlowToTrace(inputs, L.Dense(1)(L.Dense(8)(inputs)))
    model.compile("sgd", "mse")
    tfgc.enable(model)
    methods = vars(model)["call"], vars(model)["train_step"]
    with pytest.raises(KeyboardInterrupt):
        model.fit(noise(8, 8), noise(8, 1), verbose=0)
    assert model.ended.is_set()
    assert (vars(model)["call"], vars(model)["train_step"]) == methods
    tfgc.disable(model)
    assert not {"call", "train_step"} & {*vars(model)}


class Scaled(L.Layer):
    """Takes an argument that Keras hands on from the call of a model to its layers."""

    def __init__(self):
        super().__init__()
        self._register_call_context_args("scale")

    def call(self, x, scale=None):
        return x if scale is None else scale * x


@pytest.mark.skipif(not hasattr(L.Layer, "_register_call_context_args"), reason="Keras is older")
@pytest.mark.parametrize(("training", "is_given"), in_turn([False, True], [False, True]))
def test_call_context_arguments_reach_the_layers(is_given, training):
    inputs = keras.Input((8,))
    model = keras.Model(inputs, L.Dense(4)(Scaled()(L.Dense(8)(inputs))))
    x = noise(16, 8)
    expected = model(x, training=training, scale=3.0)
    tfgc.enable(model, tfgc.plan(model, strategy="uniform", segments=2) if is_given else None, verbose=0)
    np.testing.assert_array_equal(model(x, training=training, scale=3.0), expected)
