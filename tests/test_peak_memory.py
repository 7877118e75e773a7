"""`PeakMemory`: what Keras shows of it, and that its figures are those of the allocator."""

import contextlib
import csv
import gc
import re
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf
from equality import mostly
from memory import alone, info

import tfgc
from tfgc._core.plan import Plan
from tfgc._training import stand_ins
from tfgc._units import format_measured

L = keras.layers
WIDTH, DEPTH, BATCH = 320, 4, 512  # Below 256 KiB a CPU's allocator counts nothing.
X = np.random.default_rng(0).normal(size=(4 * BATCH, WIDTH)).astype("float32")


def mlp():
    return keras.Sequential(
        [keras.Input((WIDTH,)), *[L.Dense(WIDTH, activation="gelu") for _ in range(DEPTH)], L.Dense(1)]
    )


def fitted(model, *callbacks, epochs=2, verbose=0, compiled=None, **options):
    with model.distribute_strategy.scope():
        model.compile("sgd", "mse", **(compiled or {}))
    callback = tfgc.PeakMemory()
    options.setdefault("x", X)
    options.setdefault("y", X[:, :1])
    options.setdefault("batch_size", BATCH)
    history = model.fit(
        shuffle=False, epochs=epochs, verbose=verbose, callbacks=[callback, *callbacks], **options
    ).history
    return callback, history


def test_history_csv_and_tensorboard_show_it(tmp_path):
    csv_file = tmp_path / "log.csv"
    board = keras.callbacks.TensorBoard(tmp_path / "board", write_graph=False)
    _, history = fitted(mlp(), keras.callbacks.CSVLogger(csv_file), board)
    shown = history["peak_memory_mb"]
    assert len(shown) == 2
    assert all(value > 1 for value in shown)
    with open(csv_file) as lines:
        assert [float(row["peak_memory_mb"]) for row in csv.DictReader(lines)] == pytest.approx(shown)
    board.on_train_end()
    found = {}
    for events in (tmp_path / "board" / "train").glob("events*"):
        for event in tf.compat.v1.train.summary_iterator(str(events)):
            for value in event.summary.value:
                if value.tag == "epoch_peak_memory_mb":
                    found[event.step] = float(tf.make_ndarray(value.tensor))
    assert [found[0], found[1]] == pytest.approx(shown)


@pytest.mark.parametrize("verbose", mostly(2, modes=[1, 2]))
def test_the_progress_bar_shows_it_at_the_end_of_each_epoch(verbose, capsys):
    _, history = fitted(mlp(), verbose=verbose)
    shown = [float(value) for value in re.findall(r"peak_memory_mb: ([\d.]+)", capsys.readouterr().out)]
    assert shown == pytest.approx(history["peak_memory_mb"], abs=1e-4)


def test_a_plain_model_has_no_prediction(capsys):
    callback, _ = fitted(mlp(), verbose=2)
    line = capsys.readouterr().out.strip().splitlines()[-1]
    assert re.fullmatch(r"tfgc: 'sequential\w*' trained, [\d.]+ MB measured", line)
    assert callback.predicted_bytes is None


def test_the_last_line_compares_with_the_plan(capsys):
    model = mlp()
    model.compile("sgd", "mse")
    plan = tfgc.plan(model, BATCH, budget="70%", loss="mse")
    callback, _ = fitted(tfgc.enable(model, plan), verbose=2)
    line = capsys.readouterr().out.strip().splitlines()[-1]
    beside = (
        8 + 1
    )  # the total and the count of the loss, and whether the update has begun, which `fit` has beside the step
    assert callback.predicted_bytes == tfgc.estimate(model, BATCH, plan).needed_bytes + beside
    assert callback.budget_bytes == plan.outlook.budget_bytes == Plan.from_json(plan.to_json()).outlook.budget_bytes
    said = format_measured(callback.step_bytes, callback.predicted_bytes, callback.budget_bytes)
    assert line == f"tfgc: {model.name!r} trained, {said}"
    status = tfgc.status(model)
    assert status.measured_bytes == callback.step_bytes
    assert str(status).startswith(f"{model.name}: enabled, {said}\n")
    assert tfgc.status(tfgc.enable(model, plan)).measured is None  # of the plan before


MODES = {"graph": {}, "xla": {"jit_compile": True}}


@pytest.mark.parametrize("mode", MODES)
def test_a_given_plan_predicts_for_the_mode_of_fit(mode):
    model = mlp()
    model.compile("sgd", "mse", **MODES[mode])
    plan = tfgc.plan(model, BATCH, strategy="uniform", segments=2)
    assert plan.operations
    expected = tfgc.estimate(model, BATCH, plan, mode=mode).needed_bytes
    assert stand_ins.promised_bytes(tfgc.enable(model, plan)) == (expected, None)
    (planned,) = tfgc.status(model).plans
    assert planned.plan == plan


def test_fit_is_silent_if_asked(capsys):
    fitted(mlp(), verbose=0)
    assert capsys.readouterr().out == ""


def by_hand_and_by_callback():
    """The callback's figures of epochs and of all, each beside one read around Keras's train function."""
    model = mlp()
    ballast = tf.Variable(tf.zeros([500_000]))  # is no part of the step
    above = []

    class ReadByHand(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            function = model.train_function

            def read(iterator):
                tf.config.experimental.reset_memory_stats("CPU:0")
                before = info("current")
                made = function(iterator)
                above.append(info("peak") - before)
                return made

            model.train_function = read

    callback, history = fitted(model, ReadByHand())
    held = sum(v.numpy().nbytes for v in [*model.weights, *model.optimizer.variables])
    del ballast
    shown = [value * 1e6 for value in history["peak_memory_mb"]]
    return shown, [max(above[2:4]) + held, max(above[4:]) + held], callback.step_bytes


@pytest.mark.gate
def test_the_figures_are_those_of_the_allocator():
    shown, needed, step = alone(by_hand_and_by_callback)
    assert shown == pytest.approx(needed, abs=1)
    assert step == max(needed)


class Greedy(L.Layer):
    """Needs much memory outside of training, or while it is traced."""

    def __init__(self, when):
        super().__init__()
        self.when = when

    def call(self, x, training=False):
        if self.when == "validation" and not training:
            x = x + 0 * tf.reduce_sum(tf.random.stateless_normal([20_000_000], [1, 2]))
        if self.when == "trace" and not tf.inside_function():
            raise AssertionError("run eagerly")
        if self.when == "trace":
            with tf.init_scope():
                tf.reduce_sum(tf.ones([20_000_000]) * 2)
        return x


def greedy(when, **options):
    model = keras.Sequential([keras.Input((WIDTH,)), L.Dense(WIDTH), L.Dense(1)])
    model = keras.Model(model.inputs, Greedy(when)(model.outputs[0]))
    callback, history = fitted(model, **options)
    return history["peak_memory_mb"], callback.step_bytes


@pytest.mark.gate
@pytest.mark.parametrize("when", ["validation", "trace"])
def test_validation_and_tracing_do_not_count(when):
    shown, step = alone(greedy_when, when)
    assert max(*shown, step / 1e6) < 40


def greedy_when(when):
    return greedy(when, validation_data=(X[:8], X[:8, :1]))


def one_batch():
    """An epoch of one batch: there is no other than the first."""
    model = mlp()
    callback, history = fitted(model, epochs=1, x=X[:BATCH], y=X[:BATCH, :1])
    return history["peak_memory_mb"], callback.step_bytes, sum(v.numpy().nbytes for v in model.weights)


@pytest.mark.gate
def test_the_first_batch_counts_if_it_is_the_only_one():
    shown, step, held = alone(one_batch)
    assert held < step == pytest.approx(shown[0] * 1e6, abs=1)


@pytest.mark.parametrize(
    "compiled", [{"steps_per_execution": 2}, {"run_eagerly": True}, {"jit_compile": True}], ids=lambda c: next(iter(c))
)
def test_every_mode_of_fit(compiled):
    callback, history = fitted(mlp(), compiled=compiled)
    assert len(history["peak_memory_mb"]) == 2
    assert callback.step_bytes > 4 * BATCH * WIDTH


def test_nothing_is_added_where_nothing_is_trained():
    model, callback = mlp(), tfgc.PeakMemory()
    model.compile("sgd", "mse")
    assert set(model.evaluate(X, X[:, :1], verbose=0, return_dict=True, callbacks=[callback])) == {"loss"}
    model.predict(X[:4], verbose=0, callbacks=[callback])
    assert callback.step_bytes is None
    assert tfgc.status(model).measured_bytes is None


def test_the_record_does_not_keep_a_model_alive():
    model = mlp()
    callback, _ = fitted(model)
    gone = weakref.ref(model)
    del model, callback
    keras.backend.clear_session()
    gc.collect()
    assert gone() is None


def largest_of_two_devices():
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = mlp()
    callback, history = fitted(model)
    return history["peak_memory_mb"], callback.step_bytes


@pytest.mark.gate
def test_replicas():
    shown, step = alone(largest_of_two_devices)
    assert len(shown) == 2
    assert step > 4 * BATCH * WIDTH


MB = 1_000_000


def allocate(megabytes):
    tf.fill([megabytes * MB // 4], 1.0)


def above(p):
    return (p.peak_bytes - p.held_bytes) / MB


def test_peaks_of_blocks_nest_whoever_restarts_the_counters_meanwhile():
    """Up to twice as much as is asked for: the allocator may hand out a larger chunk."""
    model = mlp()
    with tfgc.peak() as outer:
        allocate(160)
        assert 160 <= above(outer) < 320
        assert str(outer).startswith("peak so far ")
        with tfgc.peak() as inner:
            allocate(20)
        fitted(model, epochs=1, x=X[:BATCH], y=X[:BATCH, :1])
        with contextlib.suppress(ZeroDivisionError), tfgc.peak() as failing:
            allocate(40)
            1 / 0  # noqa: B018
        allocate(80)
    allocate(640)
    assert 160 <= above(outer) < 320
    assert 20 <= above(inner) < 40 <= above(failing) < 80
    assert re.fullmatch(r"peak [\d.]+ MB, of which [\d.]+ .?B were held before, on CPU:0", str(outer))
    with inner:  # again, anew
        allocate(40)
        with pytest.raises(tfgc.TfgcError, match="make another one"), inner:
            pass
    assert 40 <= above(inner) < 80
    assert (tfgc.peak().peak_bytes, str(tfgc.peak())) == (None, "peak not measured")


def test_a_block_inside_of_a_step_does_not_spoil_the_callback():
    class Measured(keras.Sequential):
        def train_step(self, data):
            logs = super().train_step(data)
            with tfgc.peak():
                return logs

    callbacks = [
        fitted(kind([keras.Input((WIDTH,)), *mlp().layers]), compiled={"run_eagerly": True}, epochs=1)[0]
        for kind in (keras.Sequential, Measured)
    ]
    assert callbacks[1].step_bytes == pytest.approx(callbacks[0].step_bytes, rel=0.1)
