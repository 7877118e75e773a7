"""`tfgc.plan(..., confirm=True)`: plans that are run, and corrected by what is measured."""

import collections
import dataclasses
import json

import cloudpickle
import keras
import numpy as np
import pytest
import tensorflow as tf
from click.testing import CliRunner

import tfgc
from tfgc import CompiledMemory, InfeasibleBudgetError, Measurement, OptionError, Plan, TfgcError
from tfgc._cli.group import cli
from tfgc._measure import compare, confirmed, measured_step, shipped
from tfgc._planning import stand_in
from tfgc._units import format_bytes


def net(depth=8):
    x = inputs = keras.Input((16, 16, 3))
    for i in range(depth):
        x = keras.layers.Conv2D(8, 3, padding="same", activation="relu", name=f"conv{i}")(x)
    return keras.Model(inputs, keras.layers.Dense(5, name="head")(keras.layers.GlobalAveragePooling2D(name="pool")(x)))


@pytest.fixture
def children(monkeypatch):
    """Cases that are run; each needs 10 % more than predicted above what stays, or what is asked for."""

    class Cases(list):
        ratio, build = 1.1, staticmethod(net)

    cases = Cases()

    def run(case):
        cases.append(case)
        plan = Plan.from_json(case.plan)
        step = tfgc.estimate(cases.build(), case.batch_size, plan, optimizer="sgd", loss="mse")
        peak = round(cases.ratio * (step.needed_bytes - step.fixed_bytes))
        return Measurement(case.network, case.case, case.mode, case.batch_size, peak_bytes_max=peak)

    monkeypatch.setattr(compare, "run", run)
    return cases


def test_a_budget_that_is_missed_is_corrected(children):
    how = {"optimizer": "sgd", "loss": "mse"}
    children.ratio, children.build = 1.6, lambda: net(12)
    budget = round(0.8 * tfgc.estimate(net(12), 64, **how).needed_bytes)
    plan = tfgc.plan(net(12), 64, budget=budget, confirm=True, **how)
    tried = Plan.from_json(children[0].plan)
    assert [len(s.nodes) for s in tried.segments] == [
        len(s.nodes) for s in tfgc.plan(net(12), 64, budget=budget, **how).segments
    ]
    noted = plan.options["confirmed"]
    assert noted["runs"] == len(children) == 2
    step = tfgc.estimate(net(12), 64, plan, **how)
    assert noted["predicted_bytes"] == step.needed_bytes
    assert noted["measured_bytes"] == step.fixed_bytes + round(1.6 * (step.needed_bytes - step.fixed_bytes))
    assert 0.9 * budget < noted["measured_bytes"] <= noted["budget_bytes"] == budget
    assert plan.outlook.ratio == pytest.approx(1.6, rel=1e-3)
    assert Plan.from_json(plan.to_json()) == plan
    words = plan.explain().replace("\n  ", " ")
    needed, of = format_bytes(noted["measured_bytes"]), format_bytes(budget)
    assert f"Budget {of}: needs {needed}, most while" in words
    assert f"Budget held: {needed} measured of {of}; plans run in a child process: 2." in words
    assert "confirmed=" not in words


def test_room_that_is_left_is_used_and_what_no_plan_was_measured_to_fit_is_refused(children):
    how = {"optimizer": "sgd", "loss": "mse"}
    budget = tfgc.estimate(net(), 64, tfgc.plan(net(), 64, budget="70%", **how), **how).needed_bytes
    children.ratio = 0.6
    plan = tfgc.plan(net(), 64, budget=budget, confirm=True, **how)
    assert plan.outlook.overhead < tfgc.plan(net(), 64, budget=budget, **how).outlook.overhead
    children.ratio = 2
    children.clear()
    with pytest.raises(InfeasibleBudgetError, match="as measured") as error:
        tfgc.plan(net(), 64, budget=budget, confirm=True, **how)
    (case,) = children  # the plan that is tried first is the least already
    least = tfgc.estimate(net(), 64, Plan.from_json(case.plan), **how)
    assert error.value.least == least.fixed_bytes + 2 * (least.needed_bytes - least.fixed_bytes) > budget


def test_a_share_is_one_of_the_plain_step_that_is_predicted(children):
    how = {"optimizer": "sgd", "loss": "mse"}
    plain = tfgc.estimate(net(), 64, **how).needed_bytes
    assert tfgc.plan(net(), 64, budget="70%", confirm=True, **how).options["confirmed"]["budget_bytes"] == int(
        0.7 * plain
    )


def test_without_a_budget_the_plan_is_measured_as_it_is(children):
    plan = tfgc.plan(net(), 64, strategy="sqrt", confirm=True)
    assert len(children) == 1
    assert plan.options["confirmed"]["budget_bytes"] is None
    assert [len(s.nodes) for s in plan.segments] == [
        len(s.nodes) for s in tfgc.plan(net(), 64, strategy="sqrt").segments
    ]
    assert "prediction missed by" in plan.explain().lower()


@pytest.fixture
def compiled(monkeypatch):
    """What is compiled, plans or None for the plain step, with its bytes: 10 % more than XLA takes on this machine."""
    plans = []

    def memory(model, batch_size, plan, target, example, optimizer, loss):
        assert [tuple(part.shape) for part in example] == [(64, 16, 16, 3), (64, 5)]
        how = {"mode": "xla", "optimizer": optimizer, "loss": loss}
        fixed = tfgc.estimate(model, batch_size, **how).fixed_bytes
        planned = plan or tfgc.plan(model, batch_size, strategy="keep_all", **how)
        plans.append((plan, temporary := round(1.1 * (planned.outlook.needed_bytes - fixed))))
        return CompiledMemory(target, "NVIDIA", 80_000_000_000, 0, 0, temporary, (), 1.0, "a compiler")

    monkeypatch.setattr(measured_step.memory, "compiled_memory", memory)
    monkeypatch.setattr(confirmed.compiler, "check_installed", lambda: None)
    return plans


def test_a_plan_for_xla_is_compiled_for_a_gpu_that_is_not_there(compiled):
    how = {"optimizer": "sgd", "loss": "mse", "mode": "xla"}
    fixed = tfgc.estimate(net(), 64, **how).fixed_bytes
    plan = tfgc.plan(net(), 64, budget="70%", confirm="h100", **how)
    (plain, plain_bytes), (tried, temporary) = compiled
    assert plain is None
    assert tried.segments == plan.segments
    noted = plan.options["confirmed"]
    assert (noted["target"], noted["runs"]) == ("h100", 1)
    assert noted["budget_bytes"] == int(0.7 * (fixed + plain_bytes))  # of what the plain step is compiled to
    assert noted["measured_bytes"] == fixed + temporary <= noted["budget_bytes"]
    words = Plan.from_json(plan.to_json()).explain().replace("\n  ", " ")
    assert "plans compiled by XLA for h100: 1." in words


@pytest.mark.slow
def test_the_command_compiles_for_a_gpu_that_is_not_there(compiled, monkeypatch, tmp_path):
    monkeypatch.setattr(stand_in, "batch", lambda *args: (tf.zeros((64, 16, 16, 3)), tf.zeros((64, 5))))
    path = tmp_path / "plan.json"
    command = "plan sample_cnn --image-size 16 --batch-size 64 --mode xla --target t4 --optimizer sgd"
    shown = CliRunner().invoke(cli, [*command.split(), "-o", str(path)])
    assert shown.exit_code == 0, shown.output
    assert "plans compiled by XLA for t4: 1" in shown.output
    assert json.loads(path.read_text())["options"]["confirmed"]["target"] == "t4"
    assert len(compiled) == 1


def test_what_files_say_of_a_measurement_may_be_anything(children):
    plan = tfgc.plan(net(), 64, confirm=True)
    for said in (None, 3, {}, {"measured_bytes": "much"}, {**plan.options["confirmed"], "runs": [1]}):
        changed = dataclasses.replace(plan, options={"confirmed": said})
        assert f"confirmed={said!r}" in Plan.from_json(changed.to_json()).explain().replace("\n  ", " ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"confirm": 3}, "confirm=3: must be True, False, a function that builds the model, or the name of a GPU"),
        ({"confirm": True}, "batch_size is needed where bytes"),
        ({"confirm": True, "batch_size": 4, "mode": "xla"}, 'this machine has none. Name a GPU .* confirm="h100"'),
        ({"confirm": "h10", "batch_size": 4, "mode": "xla"}, "'h10'.* did you mean 'h100'"),
        ({"confirm": "h100", "batch_size": 4}, "confirm='h100': XLA compiles steps for a GPU; also give mode='xla'"),
    ],
)
def test_what_cannot_be_confirmed_is_refused(arguments, words):
    with pytest.raises(OptionError, match=words):
        tfgc.plan(net(), **arguments)


def test_a_step_that_cannot_be_run_is_an_error_with_its_reason(monkeypatch):
    record = Measurement("net", "confirm", "graph", 4, status="oom", detail="ran out of memory")
    monkeypatch.setattr(compare, "run", lambda case: record)
    with pytest.raises(TfgcError, match=r"confirm=net: a step of '.*' cannot be run .*: oom, ran out of memory"):
        tfgc.plan(net(), 4, confirm=net)


# How a model gets to the child.


def sent(model, confirm=True, optimizer=None, loss=None):
    """The model as a child process builds it, from bytes."""
    return cloudpickle.loads(cloudpickle.dumps(shipped.shipped(model, confirm, optimizer, loss)))()


def squared(target, output):
    return tf.reduce_mean((target - output) ** 2, axis=-1)


def test_a_model_arrives_with_its_own_classes_and_functions():
    class Scale(keras.layers.Layer):
        def __init__(self, factor, activation, **kwargs):
            super().__init__(**kwargs)
            self.factor, self.activation = factor, keras.activations.get(activation)

        def call(self, x):
            return self.activation(self.factor * x)

        def get_config(self):
            own = {"factor": self.factor, "activation": keras.activations.serialize(self.activation)}
            return {**super().get_config(), **own}

    def twice(x):
        return 2 * x

    x = inputs = keras.Input((4,))
    x = keras.layers.Dense(4, activation=twice, trainable=False)(Scale(3.0, twice)(x))
    model = keras.Model(inputs, keras.layers.Lambda(lambda t: t + 1)(x))
    model.compile(keras.optimizers.AdamW(), squared)
    made = sent(model)
    assert isinstance(made.optimizer, keras.optimizers.AdamW)
    assert made.loss.__name__ == "squared"
    assert made.layers[2].trainable is False
    assert [v.shape for v in made.weights] == [v.shape for v in model.weights]


def test_a_layer_that_builds_its_weights_arrives():
    """Keras puts a function into each such layer, which holds the layer itself."""

    class Scale(keras.layers.Layer):
        def build(self, shape):
            self.factor = self.add_weight(shape=(shape[-1],), initializer="ones")

        def call(self, x):
            return self.factor * x

    def build():
        return keras.Sequential([keras.Input((4,)), Scale(), keras.layers.Dense(3)])

    for confirm in (True, build):
        made = sent(build(), confirm)
        assert [tuple(v.shape) for v in made.trainable_variables] == [(4,), (4, 3), (3,)]


def test_a_model_arrives_compiled_as_it_is_planned():
    assert isinstance(sent(net()).optimizer, keras.optimizers.Adam)
    assert sent(net()).loss == "mse"
    model = sent(net(), net, keras.optimizers.SGD(momentum=0.9), keras.losses.Huber())
    assert model.optimizer.momentum == 0.9
    assert isinstance(model.loss, keras.losses.Huber)
    compiled = net()
    compiled.compile("sgd", "mae")
    assert sent(compiled, optimizer="rmsprop").loss == "mae"


def test_a_model_keeps_its_metrics_where_an_optimizer_or_a_loss_is_named():
    """Predictions count what they need."""

    model = net()
    model.compile("sgd", "mae", metrics=[keras.metrics.MeanSquaredError(), "mae"], jit_compile=False)
    for given in ({"optimizer": "rmsprop"}, {"loss": "mse"}):
        made = sent(model, **given)
        assert len(made.get_compile_config()["metrics"]) == 2
        assert made.jit_compile is False
    assert (made.loss, type(made.optimizer)) == ("mse", keras.optimizers.SGD)

    def build():
        model = net()
        model.compile("sgd", "mae", metrics=[lambda target, output: output])  # Keras cannot read that again
        return model

    assert sent(build(), build, optimizer="rmsprop").loss == "mae"


class Kept(keras.Model):
    """Keras cannot know what its lock is."""

    def __init__(self, lock):
        super().__init__()
        self.lock, self.dense = lock, keras.Sequential([keras.layers.Dense(30, "gelu"), keras.layers.Dense(3)])

    def call(self, x):
        return self.dense(x)


def test_a_model_that_keras_cannot_serialize_is_refused_with_the_reason():
    model = Kept(object())
    x = np.ones((4, 3), "float32")
    model(x)
    # Before Keras 3.12 only the child finds out.
    with pytest.raises(TfgcError, match=r"(?s)confirm=True: .*'kept' cannot be .*(sent|built there).* confirm=build"):
        tfgc.plan(model, example=x, confirm=True)


@pytest.mark.parametrize(
    ("loss", "shape", "dtype"),
    [
        ("mse", (8, 5), "float32"),
        (keras.losses.SparseCategoricalCrossentropy(from_logits=True), (8,), "int32"),
        (None, (8, 5), "float32"),
        (squared, (8, 5), "float32"),
    ],
)
def test_targets_are_those_that_the_loss_takes(loss, shape, dtype):
    model = net()
    model.compile("sgd", loss)
    x, y = stand_in.batch(model, 8, None, None, None)
    assert (x.shape, y.shape, y.dtype) == ((8, 16, 16, 3), shape, dtype)
    given = (np.zeros((8, 16, 16, 3)), np.arange(8))
    assert stand_in.batch(model, 8, None, given, None)[1] is given[1]
    assert stand_in.batch(model, 8, None, given[0], None)[1].shape == shape


def test_targets_have_the_structure_of_the_outputs():
    x = inputs = keras.Input((4,), name="x")
    outputs = {"a": keras.layers.Dense(2, name="a")(x), "b": keras.layers.Dense(3, name="b")(x)}
    model = keras.Model({"x": inputs}, outputs)
    model.compile("sgd", {"a": "mse", "b": "sparse_categorical_crossentropy"})
    _, y = stand_in.batch(model, 8, None, None, None)
    assert {name: target.shape for name, target in y.items()} == {"a": (8, 2), "b": (8,)}


def two_heads(loss, names=("first", "second"), outputs=lambda first, second: {"b": first, "a": second}):
    inputs = keras.Input((4,))
    first = keras.layers.Dense(3, "softmax", name=names[0])(inputs)
    model = keras.Model(inputs, outputs(first, keras.layers.Dense(2, name=names[1])(inputs)))
    model.compile("sgd", loss)
    return model


CLASSES = "sparse_categorical_crossentropy"


@pytest.mark.parametrize(
    ("loss", "shapes"),
    [
        ({"b": CLASSES, "a": "mse"}, {"b": (8,), "a": (8, 2)}),
        ({"first": CLASSES, "second": "mse"}, {"b": (8,), "a": (8, 2)}),
        ({"b": CLASSES}, {"b": (8,), "a": (8, 2)}),
        ("crossentropy", {"b": (8, 3), "a": (8, 2)}),
    ],
    ids=["by key", "by name", "of one output", "crossentropy"],
)
def test_targets_are_those_of_losses_by_key_or_by_name(loss, shapes):
    _, y = stand_in.batch(two_heads(loss), 8, None, None, None)
    assert {key: target.shape for key, target in y.items()} == shapes


def test_targets_are_those_of_nested_losses():
    model = two_heads(["mse", [CLASSES]], outputs=lambda first, second: [second, [first]])
    _, (second, (first,)) = stand_in.batch(model, 8, None, None, None)
    assert (second.shape, first.shape) == ((8, 2), (8,))


def test_a_crossentropy_that_keras_chooses_arrives():
    assert stand_in.batch(net(), 8, None, None, "crossentropy")[1].shape == (8, 5)
    assert sent(net(), loss="crossentropy").loss == "crossentropy"


def test_layers_keep_their_names_where_keras_makes_them_in_another_order():
    """Their names are in the configuration, and two of one kind got each other's."""

    def sizes(model):
        return {layer.name: layer.units for layer in model.layers if hasattr(layer, "units")}

    model = two_heads("mse", ("z", "y"), lambda first, second: collections.OrderedDict(b=second, a=first))
    assert sizes(sent(model)) == sizes(model) == {"z": 3, "y": 2}


def test_the_advice_follows_one_full_stop(monkeypatch):
    record = Measurement("net", "confirm", "graph", 4, status="failed", detail="The user's reason.")
    monkeypatch.setattr(compare, "run", lambda case: record)
    with pytest.raises(TfgcError, match=r"failed, The user's reason\. If it cannot be built there, give"):
        tfgc.plan(net(), 4, confirm=True)


# With real children.


@pytest.mark.gate
def test_a_budget_holds_when_the_plan_is_run():
    model = net()
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    plan, unsure = (tfgc.plan(model, 256, budget="65%", confirm=confirm) for confirm in (True, False))
    noted = plan.options["confirmed"]
    assert noted["measured_bytes"] <= noted["budget_bytes"]
    if noted["runs"] == 1 and noted["measured_bytes"] < 0.95 * noted["predicted_bytes"]:
        room = noted["budget_bytes"] + noted["predicted_bytes"] - noted["measured_bytes"]
        assert tfgc.plan(model, 256, budget=room).segments == plan.segments  # no faster one is known to fit
    assert plan.outlook.overhead <= unsure.outlook.overhead
    assert model.optimizer.iterations.numpy() == 0


class Subclassed(keras.Model):
    def __init__(self, depth=6):
        super().__init__()
        self.blocks = [
            keras.Sequential([keras.layers.Dense(256, "gelu"), keras.layers.Dense(64)]) for _ in range(depth)
        ]

    def call(self, x):
        for block in self.blocks:
            x += block(x)
        return x


@pytest.mark.slow
def test_a_subclassed_model_is_run_by_its_own_step():
    model, x = Subclassed(), np.ones((512, 64), "float32")
    model.compile("sgd", "mse")
    plan = tfgc.plan(model, example=(x, x), budget="60%", confirm=True)
    assert plan.operations
    assert plan.options["confirmed"]["measured_bytes"] <= plan.options["confirmed"]["budget_bytes"]


@pytest.mark.gate
def test_the_command_confirms(monkeypatch, tmp_path):
    cases, path = [], tmp_path / "plan.json"
    record = Measurement("sample_cnn", "confirm", "graph", 16, peak_bytes_max=5_000_000)
    monkeypatch.setattr(compare, "run", lambda case: cases.append(case) or record)
    command = ["plan", "sample_cnn", "--image-size", "32", "--batch-size", "16", "--strategy", "sqrt", "--confirm"]
    result = CliRunner().invoke(cli, [*command, "-o", str(path)], catch_exceptions=False)
    assert result.exit_code == 0
    assert "confirmed   " in result.output
    assert [(case.batch_size, case.mode) for case in cases] == [(16, "graph")]
    assert json.loads(path.read_text())["options"]["confirmed"]["measured_bytes"] > 5_000_000
