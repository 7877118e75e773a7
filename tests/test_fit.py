"""`fit` with an enabled model against plain `fit`: a table of features crossed with a table of modes; files too.

Each cell trains the same model from the same seed twice, and compares losses, metrics, every state, optimizer
variables, predictions and files. The tables are plain data, and `FEATURES[name].refused` says where plain Keras itself
does not work.
"""

import contextlib
import copy
import dataclasses
import functools
import importlib.util
import inspect
import io
import json
import pickle
import re
import zipfile
from collections.abc import Callable
from typing import NamedTuple

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf
from equality import TOLERANCE, assert_same, build_metrics, fresh, noise, states

import tfgc
from tfgc._framework import graph_optimizer

L = keras.layers
X, Y = noise(16, 8).numpy(), np.random.default_rng(2).integers(0, 3, 16)
CROSS_ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
BY_ITSELF = {"y": None, "batch_size": None, "shuffle": False}  # for data that comes in batches of its own


def block(x, units, activity="l2"):
    """Whatever a wrong replay would spoil, and no bias before the normalization, whose true gradient is zero."""
    x = L.Dense(units, use_bias=False, activity_regularizer=activity, kernel_regularizer="l2")(x)
    x = L.BatchNormalization(momentum=0.5)(x)
    return L.Dropout(0.4)(L.Activation("tanh")(x))


def net(kind=keras.Model):
    inputs = keras.Input((8,))
    return kind(inputs, L.Dense(3, dtype="float32")(block(inputs, 8)))


def half():
    """The regularized activity is of float32: plain Keras cannot add one of float16 to the loss in `fit`."""
    inputs = keras.Input((8,))
    x = L.ActivityRegularization(l2=0.01, dtype="float32")(block(inputs, 8, activity=None))
    return keras.Model(inputs, L.Dense(3, dtype="float32")(x))


def two_heads():
    a, b = keras.Input((8,), name="a"), keras.Input((2,), name="b")
    x = block(L.Concatenate()([block(a, 16), b]), 8)
    return keras.Model({"a": a, "b": b}, {"label": L.Dense(3, name="label")(x), "size": L.Dense(1, name="size")(x)})


def tokens():
    """A mask on its way through segments, and the sparse gradient of an embedding."""
    inputs = keras.Input((5,), dtype="int32")
    x = L.GlobalAveragePooling1D()(L.Dropout(0.3)(L.Embedding(9, 4, mask_zero=True)(inputs)))
    return keras.Model(inputs, L.Dense(3)(block(x, 8)))


class OwnStep(keras.Model):
    """The way that Keras documents to change what `fit` does in a step."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x=x, y=y, y_pred=self(x, training=True)) + 0.1 * tf.reduce_sum(self(x) ** 2)
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply(gradients, self.trainable_weights)
        return {"loss": loss}


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return X[index * 8 : index * 8 + 8], Y[index * 8 : index * 8 + 8]


def fit_once(model, arguments, again):
    return model.fit(**arguments).history


def fit_evaluate_and_fit(model, arguments, again):
    history = fit_once(model, arguments, again)
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(6)
    evaluated = model.evaluate(data, verbose=0, return_dict=True)
    predicted = model.predict(data, verbose=0)
    for name, value in {**evaluated, **fit_once(model, arguments, again)}.items():
        history[f"{name}, later"] = value
    return {**history, "predicted": predicted}


def by_batches(model, arguments, again):
    logs = [model.train_on_batch(X[:8], Y[:8], return_dict=True), model.test_on_batch(X, Y, return_dict=True)]
    logs.append(model.train_on_batch(X[:8], Y[:8], class_weight={0: 1.0, 1: 2.0, 2: 0.5}, return_dict=True))
    return {"logs": [list(log.values()) for log in logs], "predicted": model.predict_on_batch(X)}


def fit_frozen_and_thawed(model, arguments, again):
    def optimizer():
        return keras.optimizers.SGD(0.1)

    first, layers = fit_once(model, arguments, again), [model.layers[1], model.layers[2]]
    for layer in layers:
        layer.trainable = False
    model.compile(optimizer(), CROSS_ENTROPY, run_eagerly=model.run_eagerly, jit_compile=model.jit_compile)
    second = fit_once(model, arguments, again)
    for layer in layers:
        layer.trainable = True
    model.compile(optimizer(), CROSS_ENTROPY, run_eagerly=model.run_eagerly, jit_compile=model.jit_compile)
    return {"loss": first["loss"] + second["loss"] + fit_once(model, arguments, again)["loss"]}


def fit_disabled_in_between(model, arguments, again):
    losses = fit_once(model, arguments, again)["loss"]
    plans = tfgc.status(model).plans
    tfgc.disable(model)
    losses += fit_once(model, arguments, again)["loss"]
    if plans:
        tfgc.enable(model, plans[-1].plan)
    return {"loss": losses + fit_once(model, arguments, again)["loss"]}


class Interruption(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            raise InterruptedError


def fit_interrupted(model, arguments, again):
    """The second model knows of the first only what BackupAndRestore wrote."""
    callbacks = arguments["callbacks"]
    with pytest.raises(InterruptedError):
        model.fit(**{**arguments, "callbacks": [*callbacks, Interruption()]})
    resumed = again()
    history = fit_once(resumed, arguments, again)
    assert len(history["loss"]) == arguments["epochs"] - 1
    return {**history, "predicted": resumed.predict(X, verbose=0)}


def stopped_early(model, history):
    assert len(history["loss"]) == 2


def averaged(model, history):
    """Keras puts the averages in place of the weights when training ends."""
    np.testing.assert_array_equal(model.optimizer._model_variables_moving_average[0], model.trainable_variables[0])


def skipped_once(model, history):
    assert float(model.optimizer.dynamic_scale) == 2.0**9
    assert int(model.optimizer.inner_optimizer.iterations) == len(X) // 4 - 1


def weighed(total):
    """Weights of samples such that one batch of four overflows float16 in its gradients, its loss still finite."""
    weights = np.ones(len(X), "float32")
    weights[4:8] = total
    return weights


@dataclasses.dataclass(frozen=True)
class Feature:
    """One row of the table.

    Attributes:
        compile: Gives arguments of `compile` beyond SGD and a cross entropy; anew for each model.
        fit: Gives arguments of `fit` beyond the data, told a folder for files.
        build: The model.
        run: What is called: (model, arguments of `fit`, a maker of another such model) -> what to compare.
        check: Asserts, on plain and enabled models alike, that the feature did something.
        policy: Keras's dtype policy.
        files: Whether callbacks write files, which are compared, too.
        built: Whether optimizer and metrics have their variables before `fit`, which otherwise traces all twice.
        fast: Modes that are gate tests; the others are slow. None where only the optimizer, callbacks or data differ.
        refused: Mode -> what plain Keras answers where it does not support the feature.
    """

    compile: Callable = dict
    fit: Callable = lambda folder: {}
    build: Callable = net
    run: Callable = fit_once
    check: Callable = lambda model, history: None
    policy: str = "float32"
    files: bool = False
    built: bool = True
    fast: tuple = ("graph",)
    refused: dict = dataclasses.field(default_factory=dict)


class Mode(NamedTuple):
    """One column: what `compile` and `enable` are given; `plain` is what `compile` is given for the plain model."""

    compile: dict
    plain: dict
    enable: dict
    exact: bool = False


MODES = {
    "graph": Mode({}, {}, {}),
    "eager": Mode({"run_eagerly": True}, {}, {}, exact=True),
    "compiled segments": Mode({"run_eagerly": True}, {}, {}),
    "xla": Mode({"jit_compile": True}, {"jit_compile": True}, {}),
    "loop": Mode({"steps_per_execution": 4}, {"steps_per_execution": 4}, {}),
}
ALL = tuple(MODES)
STRICT = tuple(map(int, keras.__version__.split(".")[:2])) >= (3, 15)  # older versions of Keras refuse less
SGD, Adam = keras.optimizers.SGD, keras.optimizers.Adam
Callbacks = keras.callbacks
NO_TENSORBOARD = {} if importlib.util.find_spec("tensorboard") else dict.fromkeys(MODES, "TensorBoard is not installed")

FEATURES = {
    "nothing more": Feature(fast=ALL, built=False),
    "metrics": Feature(
        lambda: {"metrics": ["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(2)]}, built=False, fast=()
    ),
    "smaller last batch of tf.data": Feature(
        fit=lambda folder: {"x": tf.data.Dataset.from_tensor_slices((X, Y)).batch(6), **BY_ITSELF},
        fast=("eager", "loop"),
    ),
    "steps_per_epoch": Feature(
        fit=lambda folder: {
            "x": tf.data.Dataset.from_tensor_slices((X, Y)).repeat().batch(4),
            **BY_ITSELF,
            "steps_per_epoch": 3,
            "epochs": 2,
        },
        fast=(),
    ),
    "PyDataset": Feature(fit=lambda folder: {"x": Batches(), **BY_ITSELF}, fast=()),
    "validation_split": Feature(lambda: {"metrics": ["accuracy"]}, lambda folder: {"validation_split": 0.5}),
    "evaluate and predict": Feature(run=fit_evaluate_and_fit),
    "train_on_batch": Feature(run=by_batches),
    "class_weight": Feature(fit=lambda folder: {"class_weight": {0: 1.0, 1: 3.0, 2: 0.2}}, fast=()),
    "sample_weight": Feature(
        lambda: {"weighted_metrics": ["accuracy"]},
        lambda folder: {"sample_weight": np.random.default_rng(3).uniform(size=16)},
        fast=("eager",),
    ),
    "several losses and outputs": Feature(
        lambda: {
            "loss": {"label": CROSS_ENTROPY, "size": "mae"},
            "loss_weights": {"label": 1.0, "size": 0.3},
            "metrics": {"label": ["accuracy"], "size": ["mse"]},
        },
        lambda folder: {"x": {"a": X, "b": X[:, :2]}, "y": {"label": Y, "size": X[:, 2:3]}},
        build=two_heads,
    ),
    "masks and sparse gradients": Feature(
        fit=lambda folder: {"x": np.random.default_rng(0).integers(0, 4, (16, 5))}, build=tokens
    ),
    "train_step of one's own": Feature(build=lambda: net(OwnStep)),
    "frozen and thawed": Feature(run=fit_frozen_and_thawed),
    "disabled in between": Feature(run=fit_disabled_in_between),
    "EarlyStopping": Feature(
        fit=lambda folder: {
            "epochs": 4,
            "validation_data": (X, Y),
            "callbacks": [Callbacks.EarlyStopping(min_delta=10.0, patience=1, restore_best_weights=True)],
        },
        check=stopped_early,
        fast=(),
    ),
    "learning rates by callbacks": Feature(
        fit=lambda folder: {
            "epochs": 3,
            "callbacks": [
                Callbacks.LearningRateScheduler(lambda epoch, rate: rate / (epoch + 1)),
                Callbacks.ReduceLROnPlateau(monitor="loss", factor=0.5, patience=0, min_delta=10.0),
                Callbacks.TerminateOnNaN(),
                Callbacks.CSVLogger(folder / "log.csv"),
            ],
        },
        files=True,
        fast=(),
    ),
    "ModelCheckpoint": Feature(
        lambda: {"optimizer": Adam(0.01)},
        lambda folder: {
            "epochs": 2,
            "callbacks": [
                Callbacks.ModelCheckpoint(folder / "whole-{epoch}.keras"),
                Callbacks.ModelCheckpoint(folder / "best.keras", monitor="loss", save_best_only=True),
                Callbacks.ModelCheckpoint(folder / "{epoch}.weights.h5", save_weights_only=True, save_freq=2),
            ],
        },
        files=True,
    ),
    "BackupAndRestore": Feature(
        lambda: {"optimizer": Adam(0.01)},
        lambda folder: {
            "epochs": 2,
            "callbacks": [Callbacks.BackupAndRestore(folder / "backup", delete_checkpoint=False)],
        },
        run=fit_interrupted,
        files=True,
        fast=("eager",),
    ),
    "TensorBoard": Feature(
        fit=lambda folder: {"callbacks": [Callbacks.TensorBoard(folder, histogram_freq=1, update_freq=1)]},
        refused=NO_TENSORBOARD,
        files=True,
        fast=(),
    ),
    "gradient accumulation": Feature(
        lambda: {"optimizer": Adam(0.01, gradient_accumulation_steps=2)},
        lambda folder: {"batch_size": 4},
    ),
    "clipnorm": Feature(lambda: {"optimizer": SGD(0.1, clipnorm=0.05)}, fast=()),
    "global_clipnorm": Feature(lambda: {"optimizer": SGD(0.1, momentum=0.9, global_clipnorm=0.1)}, fast=()),
    "clipvalue": Feature(lambda: {"optimizer": SGD(0.1, clipvalue=0.01)}, fast=()),
    "EMA": Feature(lambda: {"optimizer": SGD(0.1, use_ema=True, ema_momentum=0.5)}, check=averaged, fast=()),
    "EMA, overwriting": Feature(
        lambda: {"optimizer": SGD(0.1, use_ema=True, ema_overwrite_frequency=2)},
        lambda folder: {"batch_size": 4},
        fast=(),
    ),
    "SwapEMAWeights": Feature(
        lambda: {"optimizer": SGD(0.1, use_ema=True, ema_momentum=0.5)},
        lambda folder: {"callbacks": [Callbacks.SwapEMAWeights()], "validation_data": (X, Y)},
    ),
    "weight decay and a schedule": Feature(
        lambda: {"optimizer": keras.optimizers.AdamW(keras.optimizers.schedules.CosineDecay(0.01, 4), 0.1)}, fast=()
    ),
    "LossScaleOptimizer": Feature(
        lambda: {"optimizer": keras.optimizers.LossScaleOptimizer(SGD(0.1), dynamic_growth_steps=1)}, fast=("graph",)
    ),
    "mixed_float16": Feature(build=half, policy="mixed_float16"),
    "mixed_bfloat16": Feature(build=half, policy="mixed_bfloat16", fast=()),
    "float16 activity regularizer": Feature(
        policy="mixed_float16",
        refused={
            **dict.fromkeys(("graph", "xla", "loop"), "containing a tensor of dtype <dtype: 'float16'>"),
            **dict.fromkeys(("eager", "compiled segments"), "a half tensor|dtype <dtype: 'float16'>"),
        },
    ),
    "overflow under loss scaling": Feature(
        lambda: {"optimizer": keras.optimizers.LossScaleOptimizer(SGD(0.1), initial_scale=2.0**10)},
        lambda folder: {"batch_size": 4, "shuffle": False, "sample_weight": weighed(1e8)},
        build=half,
        policy="mixed_float16",
        check=skipped_once,
        fast=("graph", "eager"),
    ),
    "overflow in the forward pass": Feature(
        lambda: {"optimizer": keras.optimizers.LossScaleOptimizer(SGD(0.1), initial_scale=2.0**10)},
        lambda folder: {"batch_size": 4, "shuffle": False, "x": X * weighed(1e6)[:, None]},
        build=half,
        policy="mixed_float16",
        check=skipped_once,
    ),
}


class Outcome(NamedTuple):
    history: dict
    states: dict
    optimizer: dict
    predictions: list
    files: dict


def inputs_of(arguments):
    return arguments["x"] if isinstance(arguments["x"], np.ndarray | dict) else X


def outcome(feature, mode, folder, enabled):
    """Build, compile and train one model, and return all that came of it."""
    folder.mkdir()

    def make():
        model = fresh(feature.build)
        if enabled:
            tfgc.enable(model, tfgc.plan(model, strategy="uniform", segments=3), **mode.enable)
        settings = {"optimizer": SGD(0.1, momentum=0.9), "loss": CROSS_ENTROPY, **feature.compile()}
        model.compile(**settings, **(mode.compile if enabled else mode.plain))
        if feature.built:
            model.optimizer.build(model.trainable_variables)
        return model

    model = make()
    arguments = {"x": X, "y": Y, "batch_size": 8, "verbose": 0, **feature.fit(folder)}
    if feature.built and model._compile_metrics is not None:
        build_metrics(model, arguments["x"], arguments["y"], arguments.get("sample_weight"))
    history = feature.run(model, arguments, make)
    feature.check(model, history)
    return Outcome(
        history,
        {f"{i} {v.path}": np.array(v) for i, v in enumerate(states(model))},
        {f"{i} {v.path}": np.array(v) for i, v in enumerate(model.optimizer.variables)},
        [np.array(y) for y in tf.nest.flatten(model(inputs_of(arguments), training=False))],
        contents(folder),
    )


def contents(folder):
    """What is in each file, times and dates left out."""
    found = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        name = str(path.relative_to(folder))
        if path.suffix == ".keras":
            found[name] = archive(path)
        elif path.suffix == ".h5":
            found[name] = arrays(path)
        elif path.suffix == ".json":
            found[name] = {key: value for key, value in json.loads(path.read_text()).items() if key != "date_saved"}
        elif path.suffix == ".csv":
            found[name] = np.genfromtxt(path, delimiter=",", skip_header=1)
        elif "tfevents" in name:
            found.setdefault(str(path.parent.relative_to(folder)), {}).update(events(path))
        else:
            found[name] = path.read_text()
    return found


def archive(path):
    """What a whole model's file holds, but for `run_eagerly`, in which the columns of the table differ."""
    with zipfile.ZipFile(path) as file:
        parts = {name: file.read(name) for name in file.namelist()}
    metadata = json.loads(parts.pop("metadata.json"))
    assert metadata.pop("date_saved")
    weights = arrays(io.BytesIO(parts.pop("model.weights.h5")))
    config = json.loads(parts.pop("config.json"))
    config["compile_config"].pop("run_eagerly")
    return {"metadata": metadata, "config": config, "weights": weights, "others": parts}


def arrays(file):
    found = {}
    with h5py.File(file) as h5:
        h5.visititems(lambda name, item: found.update({name: item[()]} if isinstance(item, h5py.Dataset) else {}))
        found.update({f"attribute {name}": str(value) for name, value in h5.attrs.items()})
    assert found
    return found


def events(path):
    found = {}
    for record in tf.data.TFRecordDataset(str(path)):
        event = tf.compat.v1.Event.FromString(record.numpy())
        for value in event.summary.value:
            if "per_second" not in value.tag and value.tag != "keras":
                found[f"{value.tag} at {event.step}"] = tf.make_ndarray(value.tensor)
    return found


def cells():
    for name, feature in FEATURES.items():
        for mode in MODES:
            marks = pytest.mark.gate if mode == "xla" else []
            yield pytest.param(name, mode, marks=marks if mode in feature.fast else pytest.mark.slow)


# Older Keras, of a last execution with fewer steps than the others.
@pytest.mark.gate
@pytest.mark.filterwarnings("ignore:Your input ran out of data:UserWarning")
@pytest.mark.parametrize(("name", "mode"), cells())
def test_fit_equals_plain_fit(name, mode, tmp_path, replays):
    feature, mode, refusal = FEATURES[name], MODES[mode], FEATURES[name].refused.get(mode)
    keras.config.set_dtype_policy(feature.policy)
    try:
        plain = outcome(feature, mode, tmp_path / "plain", False)
    except Exception as error:
        if refusal is None or not re.search(refusal, str(error)):
            raise
        with pytest.raises(Exception, match=refusal):
            outcome(feature, mode, tmp_path / "ours", True)
        return
    assert refusal is None or not STRICT, "plain Keras supports this by now: say so in the table"
    assert not replays
    assert bool(plain.files) == feature.files
    ours = outcome(feature, mode, tmp_path / "ours", True)
    assert replays or name == "masks and sparse gradients", "nothing was recomputed"
    tol = 0.0 if mode.exact else TOLERANCE[feature.policy]
    for field in Outcome._fields:
        assert_same(getattr(plain, field), getattr(ours, field), tol, field)


def trained(enabled):
    """A model after one exact epoch, so that what is made of it must be equal bit by bit, and its plan as a text.

    The enabled one runs eagerly.
    """
    model = fresh(net)
    text = tfgc.plan(model, strategy="uniform", segments=3).to_json()
    if enabled:
        tfgc.enable(model, tfgc.Plan.from_json(text))
    compiled(model).run_eagerly = enabled
    with graph_optimizer.off():
        model.fit(X, Y, batch_size=8, verbose=0)
    return model, text


@pytest.fixture(scope="module")
def pair():
    """The same training without and with tfgc."""
    return trained(False), trained(True)


def saved(name, **settings):
    def write(model, folder):
        model.save(folder / name, **settings)
        return contents(folder)

    return write


def saved_as_h5(model, folder):
    """Keras 3.15 drops the optimizer from the model's own compile config as it writes; put back here."""
    settings = dict(model._compile_config.config)
    model.save(folder / "model.h5")
    model._compile_config.config = settings
    return contents(folder)


def saved_weights(model, folder):
    model.save_weights(folder / "model.weights.h5")
    return contents(folder)


def sharded(model, folder):
    if "max_shard_size" not in inspect.signature(model.save_weights).parameters:
        pytest.skip("this Keras writes no shards")
    model.save_weights(folder / "model.weights.json", max_shard_size=1e-6)
    found = contents(folder)
    assert len(found) > 2
    return found


def checkpoint(model, folder):
    path = tf.train.Checkpoint(model=model, optimizer=model.optimizer).save(str(folder / "checkpoint"))
    names = [name for name, _ in tf.train.list_variables(path) if name != "_CHECKPOINTABLE_OBJECT_GRAPH"]
    return {name: tf.train.load_variable(path, name) for name in names}


def saved_model(model, folder):
    """What serves, and what could be trained further from there."""
    model.export(folder)
    loaded = tf.saved_model.load(str(folder))
    with tf.GradientTape() as tape:
        outputs = loaded.serve(X)
        loss = tf.reduce_sum(outputs**2)
    serving = loaded.signatures["serving_default"]
    return {
        "outputs": outputs.numpy(),
        "signatures": {name: str(f.structured_input_signature) for name, f in loaded.signatures.items()},
        "serving": {name: value.numpy() for name, value in serving(tf.constant(X)).items()},
        "variables": {v.name: v.numpy() for v in loaded.variables},
        "trainable": {v.name: v.numpy() for v in loaded.trainable_variables},
        "gradients": [g.numpy() for g in tape.gradient(loss, loaded.trainable_variables)],
    }


def summary(model, folder):
    lines = []
    model.summary(print_fn=lines.append, expand_nested=True, show_trainable=True)
    return lines


WRITERS = {
    "save": saved("model.keras"),
    "save, not zipped": saved("model", zipped=False),
    "save as .h5": saved_as_h5,
    "save_weights": saved_weights,
    "save_weights, sharded": sharded,
    "tf.train.Checkpoint": checkpoint,
    "export": saved_model,
    "to_json": lambda model, folder: model.to_json(),
    "summary": summary,
}


@pytest.mark.gate
@pytest.mark.parametrize("name", WRITERS)
def test_what_is_written_equals_that_of_the_plain_model(name, pair, tmp_path):
    written = []
    for number, (model, _) in enumerate(pair):
        (folder := tmp_path / str(number)).mkdir()
        written.append(WRITERS[name](model, folder))
    assert written[0]
    assert_same(*written, 0.0, name)


def compiled(model):
    model.compile(Adam(0.01), CROSS_ENTROPY, metrics=["accuracy"], run_eagerly=True)
    return model


def loaded(model, folder):
    model.save(folder / "model.keras")
    return keras.models.load_model(folder / "model.keras")


def loaded_from_h5(model, folder, compile=False):
    saved_as_h5(model, folder)
    model = keras.models.load_model(folder / "model.h5", compile=compile)
    return model if compile else compiled(model)


def cloned(model, folder):
    other = keras.models.clone_model(model)
    other.set_weights(model.get_weights())
    return compiled(other)


def from_json(model, folder):
    model.save_weights(folder / "model.weights.h5")
    other = compiled(keras.models.model_from_json(model.to_json()))
    other.optimizer.build(other.trainable_variables)
    other.load_weights(folder / "model.weights.h5")
    return other


class Reader(NamedTuple):
    """How another model is made of a trained one, and what plain Keras answers if that cannot train on."""

    read: Callable
    refused: str | None = None


READERS = {
    "load_model": Reader(loaded),
    "load_model of .h5": Reader(loaded_from_h5),
    "load_model of .h5 with optimizer": Reader(functools.partial(loaded_from_h5, compile=True), "Unknown variable"),
    "clone_model": Reader(cloned),
    "model_from_json and load_weights": Reader(from_json),
    "pickle": Reader(lambda model, folder: pickle.loads(pickle.dumps(model))),
    "deepcopy": Reader(lambda model, folder: copy.deepcopy(model)),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=[] if n in ("load_model", "clone_model", "deepcopy") else pytest.mark.slow)
        for n in READERS
    ],
)
def test_what_is_read_is_enabled_by_the_plan_file_and_trains_on(name, pair, tmp_path, replays):
    reader, results = READERS[name], []
    for enabled, (model, text) in enumerate(pair):
        (folder := tmp_path / str(enabled)).mkdir()
        keras.utils.set_random_seed(7)
        other = reader.read(model, folder)
        assert "call" not in vars(other)
        if enabled:
            tfgc.enable(other, tfgc.Plan.from_json(text))
        other.run_eagerly = True
        with contextlib.nullcontext() if reader.refused is None else pytest.raises(ValueError, match=reader.refused):
            history = other.fit(X, Y, batch_size=8, verbose=0).history
            variables = [v.numpy() for v in [*states(other), *other.optimizer.variables]]
            results.append([history, variables, other.predict(X, verbose=0)])
        assert bool(replays) == bool(enabled)
    if reader.refused is None:
        assert_same(*results, 1e-6, name)  # plain runs op by op
