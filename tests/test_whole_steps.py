"""`fit`, `train_on_batch` and `train_step` by a plan of the whole step: plain's bits, whatever Keras does in it."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfgc
from tfgc._planning import function_trace
from tfgc._run import emit

pytestmark = pytest.mark.usefixtures("optimizer_off")

L = keras.layers
ROWS, SIZE = 16, 24
X, Y = np.random.default_rng(0).random((2 * ROWS + 5, SIZE, SIZE, 4), "float32"), np.arange(2.0 * ROWS + 5) % 3


def cnn(kind=keras.Model):
    x = inputs = L.Input((SIZE, SIZE, 4))
    for i in range(3):
        x = L.BatchNormalization()(L.Conv2D(8, 3, padding="same", use_bias=False)(x))
        x = L.Dropout(0.2)(L.Activation("gelu", activity_regularizer="l2" if i == 2 else None)(x))
    return kind(inputs, L.Dense(3)(L.GlobalAveragePooling2D()(x)), name="net")


class Own(keras.Model):
    """Two gradient calls of one step, one of them for the second half of the batch."""

    def train_step(self, data):
        x, y = data[:2]
        for scale in (1.0, -0.5):
            with tf.GradientTape() as tape:
                loss = scale * self.compute_loss(x, y, self(x * scale, training=True))
            self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss, "nothing": {"inside": tf.norm(y)}}


def test_a_function_that_closes_over_its_batch_may_be_traced_twice():
    """The batch is no placeholder there, and TensorFlow could not read it in the graph that is built."""

    def losses(model):
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        batch = tf.constant(X[:ROWS]), tf.constant(Y[:ROWS])
        return [float(tf.function(lambda: model.train_step(batch))()["loss"]) for _ in range(2)]

    keras.utils.set_random_seed(1)
    plain = losses(cnn())
    keras.utils.set_random_seed(1)
    assert losses(tfgc.enable(cnn(), verbose=0)) == plain


class Subclassed(keras.Model):
    """A model without a graph of layers."""

    def __init__(self):
        super().__init__(name="subclassed")
        self.convolutions = [L.Conv2D(8, 3, padding="same", activation="gelu") for _ in range(3)]
        self.drop, self.head = L.Dropout(0.2), L.Dense(3)

    def call(self, x, training=None):
        for convolution in self.convolutions:
            x = self.drop(convolution(x), training=training)
        self.add_loss(1e-3 * tf.reduce_mean(x**2))
        return self.head(tf.reduce_mean(x, [1, 2]))


def adam(**options):
    return keras.optimizers.Adam(0.01, **options)


KINDS = {
    "scaled, with metrics": lambda: (
        cnn(),
        {
            "optimizer": keras.optimizers.LossScaleOptimizer(adam()),
            "metrics": ["accuracy"],
            "weighted_metrics": ["accuracy"],
        },
    ),
    "averages": lambda: (cnn(), {"optimizer": adam(use_ema=True, ema_overwrite_frequency=2, clipnorm=1.0)}),
    "accumulated, several at once": lambda: (
        cnn(),
        {"optimizer": adam(gradient_accumulation_steps=2), "steps_per_execution": 3},
    ),
    "own step": lambda: (cnn(Own), {"optimizer": adam()}),
    "subclassed, by a strategy": lambda: (Subclassed(), {"optimizer": "sgd"}),
}


def trained(kind, enabled, **options):
    """Histories and all variables after two epochs, the last batch of which is smaller."""
    keras.utils.set_random_seed(5)
    model, settings = KINDS[kind]()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(loss=loss, **settings)
    if kind in ("own step", "accumulated, several at once"):  # else Keras traces each step twice
        model.optimizer.build(model.trainable_variables)
    if enabled:
        tfgc.enable(model, verbose=0, **options)
    weights = {0: 1.0, 1: 0.5, 2: 2.0} if "metrics" in kind else None
    history = model.fit(X, Y, batch_size=ROWS, epochs=2, verbose=0, class_weight=weights).history
    logs = None
    if kind in ("averages", "subclassed, by a strategy"):
        model.layers[1].trainable = False  # weights that are frozen later
        model.compile(loss=loss, **{**settings, "optimizer": "sgd"})
        logs = model.train_on_batch(X[:ROWS], Y[:ROWS], return_dict=True)
    seeds = [layer.seed_generator.state for layer in model._flatten_layers() if isinstance(layer, L.Dropout)]
    return model, [history, logs, *map(np.array, [*model.variables, *seeds])]


@pytest.mark.parametrize("kind", KINDS)
def test_fit_by_a_plan_of_the_whole_step_gives_plains_bits(kind):
    _, plain = trained(kind, False)
    options = {"strategy": "uniform", "segments": 5} if "by a strategy" in kind else {}
    model, rewritten = trained(kind, True, **options)
    planned = tfgc.status(model).plans
    assert planned
    assert all(one.plan.strategy == options.get("strategy", "optimal") and one.plan.operations for one in planned)
    assert all(one.predicted_bytes < 0.8 * one.plain_bytes for one in planned if one.batch_size == ROWS)
    for one, other in zip(plain, rewritten, strict=True):
        np.testing.assert_equal(other, one)


@pytest.mark.parametrize(
    ("options", "why"),
    [({"strategy": "keep_all"}, "keep_all' saves nothing of the step"), ({"budget": "4GB"}, "plain step fits")],
    ids=["strategy", "budget"],
)
def test_what_is_asked_for_and_saves_nothing_says_so(options, why, capsys):
    model = tfgc.enable(cnn(), **options)
    model.compile("sgd", "sparse_categorical_crossentropy")
    model.fit(X[:ROWS], Y[:ROWS], batch_size=ROWS, verbose=0)
    (line,) = capsys.readouterr().err.splitlines()
    assert "nothing recomputed: " in line
    assert why in line
    assert why in str(tfgc.status(model))


def counting():
    """A list that grows whenever the code of a step runs, and the class whose step that is."""
    runs = []

    class Counting(keras.Model):
        def train_step(self, data):
            runs.append(data[0].shape)
            return super().train_step(data)

    return runs, Counting


def test_the_python_code_of_a_step_runs_once_for_a_trace():
    runs, Counting = counting()
    model = tfgc.enable(cnn(Counting), verbose=0)
    model.compile("sgd", "sparse_categorical_crossentropy")
    model.fit(X[:ROWS], Y[:ROWS], batch_size=ROWS, epochs=3, verbose=0)
    assert len(runs) == 1


def test_a_plan_within_a_budget_is_corrected_by_real_steps_and_traced_no_further():
    runs, Counting = counting()
    model = cnn(Counting)
    model.compile("sgd", "sparse_categorical_crossentropy")
    tfgc.enable(model, budget="60%", verbose=0)
    callback = tfgc.PeakMemory()
    model.fit(X[: 2 * ROWS], Y[: 2 * ROWS], batch_size=ROWS, epochs=6, verbose=0, callbacks=[callback])
    assert len(runs) == 1
    (planned,) = tfgc.status(model).plans
    assert planned.predicted_bytes <= 0.6 * planned.plain_bytes
    assert callback.step_bytes <= 1.08 * planned.plan.outlook.budget_bytes  # peaks move from step to step


def test_a_plan_of_a_step_is_saved_and_given_to_a_model_of_other_names_and_another_batch(tmp_path):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model, settings = KINDS["averages"]()
    model.compile(loss=loss, **settings)
    tfgc.enable(model, verbose=0).fit(X[:ROWS], Y[:ROWS], batch_size=ROWS, verbose=0)
    plan = tfgc.status(model).plans[0].plan
    assert any("conv2d" in node for segment in plan.segments for node in segment.nodes)
    assert "recompute" in plan.explain()
    plan.save(tmp_path / "plan.json")
    assert tfgc.Plan.load(tmp_path / "plan.json") == plan
    other = cnn()  # whose layers Keras numbers anew
    other.compile(loss=loss, **KINDS["averages"]()[1])
    tfgc.enable(other, plan, verbose=0)
    other.fit(X[:24], Y[:24], batch_size=24, verbose=0)
    (planned,) = tfgc.status(other).plans
    assert [len(segment.nodes) for segment in planned.plan.segments] == [
        len(segment.nodes) for segment in plan.segments
    ]
    assert planned.predicted_bytes < 0.8 * planned.plain_bytes
    deeper = tfgc.enable(keras.Sequential([keras.Input((SIZE, SIZE, 4)), L.Flatten(), L.Dense(3)]), plan, verbose=0)
    deeper.compile("sgd", "sparse_categorical_crossentropy")
    with pytest.raises(tfgc.PlanMismatchError, match=r"made for another model: it has .* operations, this model has"):
        deeper.fit(X[:24], Y[:24], verbose=0)


def test_a_plan_made_ahead_is_what_steps_run_by(capsys):
    """It is matched by the order of operations, or by their names where the loss is another one."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    for kind, options in (("subclassed, by a strategy", {"strategy": "uniform", "segments": 5}), ("averages", {})):
        model, settings = KINDS[kind]()
        model.compile(loss=loss, metrics=None if kind == "averages" else ["accuracy"], **settings)
        given = {"batch_size": ROWS} if kind == "averages" else {"example": (X[:ROWS], Y[:ROWS])}
        plan = tfgc.plan(model, **given, **options)
        assert plan.operations
        assert plan.outlook.needed_bytes < 0.8 * plan.outlook.plain_needed_bytes
        tfgc.enable(model, plan).fit(X[:ROWS], Y[:ROWS], batch_size=ROWS, verbose=0)
        (planned,) = tfgc.status(model).plans
        assert planned.plan.segments == plan.segments
        assert planned.plan.outlook.peak_bytes == plan.outlook.peak_bytes
    model.compile(loss="mse")
    tfgc.enable(model, plan).fit(X[:ROWS], np.ones((ROWS, 3)), batch_size=ROWS, verbose=0)
    (planned,) = tfgc.status(model).plans
    ends = [[segment.nodes[-1] for segment in one.segments[:-1]] for one in (plan, planned.plan)]
    assert ends[0] == ends[1]
    assert "planned again" not in capsys.readouterr().err
    step = tfgc.train_step(model, "mse", "sgd", plan=plan)
    assert np.isfinite(step(X[:ROWS], np.ones((ROWS, 3)))["loss"])


def test_a_plan_that_cuts_the_loss_is_made_again_for_another_loss(capsys):
    model = keras.Sequential([keras.Input((64, 64, 4)), *(L.Conv2D(4, 1, activation="gelu") for _ in range(3))])
    model.compile("sgd", "log_cosh")
    plan = tfgc.plan(model, 8, strategy="uniform", segments=18)
    model.compile("sgd", "mse")
    x = np.ones((8, 64, 64, 4), "float32")
    tfgc.enable(model, plan).fit(x, x, batch_size=8, verbose=0)
    assert "is of another step of this model: planned again by 'uniform'" in capsys.readouterr().err
    (planned,) = tfgc.status(model).plans
    assert planned.plan.options == {"segments": 18}


def dense():
    model = keras.Sequential([keras.Input((64,)), *(L.Dense(64, "gelu") for _ in range(4)), L.Dense(3)])
    model.compile("sgd", "mse")
    x = np.random.default_rng(0).random((1024, 64), "float32")
    return model, (x, x[:, :3])


@pytest.mark.parametrize("off", [0.0, 1e-7])
def test_verify_proves_the_step_to_the_bit(off, monkeypatch):
    """A rounding more, which every tolerance allows, is no proof."""
    built = function_trace.Built.__call__

    def rounded(self, tensors):
        return [t * (1 + off) if off and t.dtype == tf.float32 else t for t in built(self, tensors)]

    monkeypatch.setattr(function_trace.Built, "__call__", rounded)
    model, batch = dense()
    verdict = tfgc.verify(model, None, batch, modes="graph", steps=1)
    assert bool(verdict) is verdict.is_exact is (not off)
    assert f"graph optimizer off: {'not ' if off else ''}all results are equal to the bit" in str(verdict)


def test_verify_names_the_operation_that_gives_other_bits_when_it_runs_again(monkeypatch):
    made = emit.definition

    def damaged(*args, **kwargs):
        definition = made(*args, **kwargs)
        copies = [node for node in definition.node if node.name.startswith("again/") and node.op == "Erfc"]
        for node in copies[:1]:
            node.op = "Sin"
        return definition

    monkeypatch.setattr(emit, "definition", damaged)
    model, batch = dense()
    verdict = tfgc.verify(model, None, batch, modes="graph", steps=1)
    assert not verdict
    assert verdict.is_exact is False
    assert verdict.unlike_copies[0].endswith("Erfc")
    assert f"other bits when it runs again: {verdict.unlike_copies[0]!r}" in str(verdict)


def test_what_kernels_take_aside_is_measured_and_said(capsys):
    # On CPUs, convolutions and pooling of halves compute in copies that no trace shows.
    keras.utils.set_random_seed(3)
    layers = [
        layer
        for filters in (16, 32, 64)
        for layer in (
            keras.layers.Conv2D(filters, 3, padding="same", activation="relu", dtype="float16"),
            keras.layers.MaxPooling2D(dtype="float16"),
        )
    ]
    model = keras.Sequential([keras.Input((64, 64, 3)), *layers, keras.layers.GlobalAveragePooling2D()], name="halves")
    model.compile("sgd", "mse")
    tfgc.enable(model)
    x, y = np.ones((128, 64, 64, 3), "float32"), np.ones((128, 64), "float32")
    model.fit(x, y, batch_size=32, verbose=0)
    (status,) = tfgc.status(model).plans
    with tfgc.peak() as peak:
        model.fit(x, y, batch_size=32, verbose=0)
    assert status.measured_bytes == pytest.approx(peak.peak_bytes - peak.held_bytes, rel=0.6)
    assert status.measured_bytes > 1.5 * status.plain_bytes
    told = capsys.readouterr().err
    assert "'halves': " in told
    assert "measured: kernels take more than what is simulated" in told
    assert "(simulated), " in str(status)
