"""Mistakes that users make: each message is one line, quotes what was given, and says what to do instead."""

import shlex

import click
import keras
import numpy as np
import pytest
import tensorflow as tf
from click.testing import CliRunner

import tfgc
from tfgc._cli.group import cli

L = keras.layers
X = np.ones((4, 8), "float32")


def net():
    return keras.Sequential(
        [keras.Input((8,)), L.Dense(8, name="dense"), L.Dense(8, name="mid"), L.Dense(4, name="out")]
    )


def other():
    return tfgc.plan(keras.Sequential([keras.Input((5,)), L.Dense(2, name="first"), L.Dense(2, name="last")]), 4)


def open_sizes():
    inputs = keras.Input((None,), name="tokens")
    return keras.Model(inputs, L.Dense(3)(L.Embedding(9, 4)(inputs)))


def trained(model):
    model.compile("sgd", "mse")
    model.train_on_batch(X, X[:, :4])


def unbatched(model):
    model.compile("sgd", "mse")
    model.fit(tf.data.Dataset.from_tensors((X[0], X[0])), shuffle=False, verbose=0)


def two_outputs():
    inputs = keras.Input((8,))
    return keras.Model(inputs, [L.Dense(3, name="left")(inputs), L.Dense(2, name="right")(inputs)])


class Own(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = L.Dense(3)

    def call(self, x):
        return self.dense(x)


class EagerOnly(L.Layer):
    def call(self, x):
        return x + float(tf.reduce_sum(x))

    def compute_output_shape(self, shape):
        return shape


def eager_only():
    return keras.Sequential(
        [keras.Input((8,)), L.Dense(4), EagerOnly(name="only_eager"), L.Dense(2)], name="eager_only"
    )


class NotInXla(EagerOnly):
    def call(self, x):
        return x + tf.strings.to_number(tf.strings.as_string(tf.reduce_sum(tf.stop_gradient(x))))


def deep():
    return keras.Sequential([keras.Input((64,)), *(L.Dense(64, activation="tanh") for _ in range(9))], name="deep")


def not_in_xla():
    return keras.Sequential([keras.Input((8,)), L.Dense(4), NotInXla()], name="not_in_xla")


def convolved():
    first, second = (L.Conv2D(4, 5, name=f"conv{i}") for i in (1, 2))
    return keras.Sequential([keras.Input((None, None, 3), name="image"), first, second])


def forgetful(graph, *, budget=None):
    """A strategy that returns nothing."""


def broken(targets, predictions):
    return targets.no_such_attribute - predictions


# What is done, what it gave, and words of the way out.
CALLS = [
    (lambda: tfgc.plan(net(), batch_size=0), "batch_size=0", "an integer >= 1"),
    (lambda: tfgc.plan(net(), batch_size="four"), "batch_size='four'", "an integer >= 1"),
    (lambda: tfgc.plan(net(), X), "batch_size is an array of shape", "example=batch"),
    (lambda: tfgc.plan(net(), example=tf.data.Dataset.from_tensors(X)), "a tf.data.Dataset", "next(iter(dataset))"),
    (lambda: tfgc.plan(net(), example=5), "example=5", "give x or (x, y)"),
    (lambda: tfgc.plan(net(), example=X[0]), f"shape {X[0].shape} does not fit input", "dataset.batch(n)"),
    (lambda: tfgc.plan(net(), example=X[:, :3]), "3) does not fit input", "a batch of such samples"),
    (lambda: tfgc.plan(net(), example=X[:0]), "example=array([], sha", "give x or (x, y)"),
    (lambda: tfgc.plan(Own(), example=X[:0]), "example=array([], sha", "give x or (x, y)"),
    (lambda: unbatched(tfgc.enable(net(), budget="90%")), f"shape {X[0].shape} does not fit", "dataset.batch(n)"),
    (lambda: tfgc.Plan.from_json(3), "not text but 3", "tfgc.plan"),
    (lambda: tfgc.plan(net(), 4, budget="lots"), "budget='lots'", "such as 4_000_000_000 or '4GB'"),
    (lambda: tfgc.plan(net(), 4, budget=10), "budget=10", "'10%' for that share"),
    (lambda: tfgc.plan(net(), 4, budget="10"), "budget='10'", "'10%' for that share"),
    (lambda: tfgc.plan(net(), 4, budget=1), "budget=1 ", "(all of it: 1.0)"),
    (lambda: tfgc.plan(net(), 4, budget="1"), "budget='1' ", "write '1GB' for gigabytes"),
    (lambda: tfgc.plan(net(), 4, budget="20%"), "20 % of the plain step", "the model as it is, since no plan"),
    (lambda: tfgc.plan(Own(), example=X, budget=0.2), "20 % of the plain step", "the model as it is, since no plan"),
    (lambda: tfgc.plan(deep(), 256, budget="10%"), "10 % of the plain step", "Use at least 77 %, or that budget"),
    (lambda: tfgc.estimate(net(), 4, 8), "plan=8", "make one with tfgc.plan(model, batch_size, s"),
    (lambda: tfgc.verify(net(), None, tf.data.Dataset.from_tensors(X)), "a tf.data.Dataset", "batch=next(iter("),
    (lambda: tfgc.verify(net(), "sqrt", X), "plan='sqrt'", "make one with tfgc.plan(model, batch_size, s"),
    (lambda: tfgc.enable(net(), layers={"mid": False}), "{'mid': False}", "give a list"),
    (lambda: tfgc.train_step(Own(), "mse", "sgd"), "(Own)", "tfgc.enable(model) plans its first step"),
    (lambda: tfgc.plan(net(), 4, budget="200B"), "fits in 200 bytes", "Use a smaller batch or input, or that budget"),
    (lambda: tfgc.plan(net(), budget="1MB"), "batch_size", "give batch_size=32"),
    (lambda: tfgc.plan(net(), 4, strategy="sqrrt"), "'sqrrt'", "did you mean 'sqrt'"),
    (lambda: tfgc.plan(net(), 4, strategy=3), "strategy 3", "available: articulation"),
    (lambda: tfgc.plan(net(), 4, strategy="sqrt", segment=3), "'segment'", "did you mean 'segments'"),
    (lambda: tfgc.plan(net(), 4, strategy="sqrt", segments=-2), "segments=-2", "an integer >= 1"),
    (lambda: tfgc.plan(net(), 4, strategy="sqrt", budget="1GB"), "budget='1GB'", "leave budget="),
    (lambda: tfgc.plan(net(), 4, strategy="manual", keep=["dens"]), "'dens'", "did you mean 'dense'"),
    (lambda: tfgc.plan(net(), 4, mode="lazy"), "mode='lazy'", "one of graph, xla"),
    (lambda: tfgc.plan(net(), 4, optimizer="adamm"), "'adamm'", "did you mean 'adam'"),
    (lambda: tfgc.plan(net(), 4, optimizer="none such"), "'none such'", "such as 'adam'"),
    (lambda: tfgc.plan(net(), 4, loss="msee"), "'msee'", "did you mean 'mse'"),
    (lambda: tfgc.plan(net(), 4, loss=["mse"]), "loss=['mse']", "give one loss"),
    (lambda: tfgc.pareto(net(), 4, loss=3), "no loss 3", "such as 'mse', or a function"),
    (lambda: tfgc.estimate(net(), 4, loss=lambda y: y), "<lambda>", "does not take targets and predictions"),
    (lambda: tfgc.plan(net(), 4, slices=8), "no option 'slices'", "tfgc.recompute(fn, slices=...)"),
    (lambda: tfgc.recompute(net(), slices="many"), "slices='many'", "an integer >= 1"),
    (lambda: tfgc.plan(eager_only(), 4), "'eager_only' cannot be traced", "Use TensorFlow operations"),
    (lambda: tfgc.plan(open_sizes()), "input 'tokens' has the shape (None, None)", "input_shapes={'tokens': (128,)}"),
    (lambda: tfgc.plan(open_sizes(), 4, input_shapes={"token": (3,)}), "'token'", "did you mean 'tokens'"),
    (lambda: tfgc.plan(open_sizes(), 4, input_shapes={"x": (3,)}), "'x'", "it has 'tokens'"),
    (lambda: tfgc.plan(open_sizes(), 4, input_shapes={"tokens": (3, 3)}), "(3, 3)", "in place of each None"),
    (lambda: tfgc.plan(open_sizes(), 4, input_shapes={"tokens": (0,)}), "(0,)", "of integers >= 1"),
    (lambda: tfgc.plan(open_sizes(), 4, input_shapes={"tokens": 3}), "tokens", "a tuple such as (128,)"),
    (lambda: tfgc.plan(open_sizes(), 4, input_shapes={"tokens": "3"}), "'3'", "a tuple such as (128,)"),
    (
        lambda: tfgc.plan(convolved(), 4, input_shapes={"image": (6, 6, 3)}),
        "'sequential' cannot be called on a batch of shapes (4, 6, 6, 3): Negative dimension size",
        "Give other sizes",
    ),
    (lambda: tfgc.plan(net(), 4, strategy="manual", keep=[net().layers[0]]), "<Dense name=dense", "keep=['conv1']"),
    (lambda: tfgc.plan(net(), 4, strategy="manual", keep=net().layers[0]), "<Dense name=dense", "keep=['conv1']"),
    (lambda: tfgc.plan(net(), 4, strategy=forgetful), "'forgetful' returned None", "Plan.from_cuts"),
    (lambda: tfgc.plan(net(), 4, strategy=forgetful, budget="1GB"), "'forgetful' returned None", "Plan.from_cuts"),
    (lambda: tfgc.plan(Own(), example=tf.data.Dataset.from_tensors(X)), "a tf.data.Dataset", "next(iter(dataset))"),
    (lambda: tfgc.plan(Own(), example=5), "example=5", "give x or (x, y)"),
    (lambda: tfgc.plan(Own(), 4), "(Own)", "give a batch, or its specs, as example=(x, y)"),
    (lambda: tfgc.plan(Own(), 4, example="abc"), "example='abc'", "give x or (x, y)"),
    (lambda: tfgc.plan(Own(), 3, example=X), "batch_size=3", "give either one"),
    (lambda: tfgc.plan("resnet50", 4), "'resnet50'", "tfgc.zoo.build('resnet50')"),
    (lambda: tfgc.plan(keras.Sequential([L.Dense(3)], name="bare"), 4), "'bare'", "start it with keras.Input"),
    (lambda: tfgc.estimate(net(), batch_size=-1), "batch_size=-1", "an integer >= 1"),
    (lambda: tfgc.function(net()), "the model 'sequential", "tfgc.enable(model)"),
    (lambda: tfgc.function(L.Dense(8, name="dense")), "the layer 'dense'", "tfgc.recompute(layer)"),
    (lambda: tfgc.function(Own), "<class", "give the function that runs a step"),
    (lambda: tfgc.function(tf.function(len)), "not <tensorflow", "use tfgc.function in place of tf.function"),
    (lambda: tfgc.function(tfgc.function(lambda x: x)), "<tfgc.function", "give its python_function"),
    (lambda: tfgc.function([len]), "[<built-in", "call what this returns: tfgc.function(step)(x)"),
    (lambda: tfgc.function(segment=3), "'segment'", "needs its name beside it, such as strategy='uniform'"),
    (lambda: tfgc.function(jit_complie=True), "'jit_complie'", "did you mean 'jit_compile'"),
    (lambda: tfgc.function(plan=3), "'plan'", "give a strategy or a budget"),
    (lambda: tfgc.function(strategy="manual"), "'manual'", "needs the option keep=..."),
    (lambda: tfgc.function(strategy="sqrt", budget="1GB"), "budget='1GB'", "leave budget="),
    (lambda: tfgc.function(autograph="no"), "autograph='no'", "True or False"),
    (lambda: tfgc.enable("m"), "'m'", "give the model itself"),
    (lambda: tfgc.enable(net(), "plan.json"), "plan='plan.json'", "tfgc.Plan.load('plan.json')"),
    (lambda: tfgc.enable(net(), "sqrt"), "plan='sqrt'", "give strategy='sqrt'"),
    (lambda: tfgc.enable(net(), "70%"), "plan='70%'", "give budget='70%'"),
    (lambda: trained(tfgc.enable(net(), other())), "it has 5 operations", "tfgc.plan(model)"),
    (lambda: tfgc.enable(net(), other(), budget="1GB"), "budget='1GB'", "not both"),
    (lambda: tfgc.enable(net(), layers=["dens"]), "'dens'", "did you mean 'dense'"),
    (lambda: tfgc.enable(net(), layers=[]), "layers=[]", "name at least one layer"),
    (lambda: tfgc.enable(net(), on_oom="retry"), "on_oom='retry'", "None, 'replan' or 'raise'"),
    (lambda: tfgc.train_step("net", "mse", "sgd"), "'net'", "give the model itself"),
    (lambda: tfgc.train_step(net(), "mse", "adamm"), "'adamm'", "did you mean 'adam'"),
    (lambda: tfgc.train_step(net(), "mse", 0.1), "no optimizer 0.1", "such as 'adam'"),
    (lambda: tfgc.train_step(net(), "mean squared eror", "sgd"), "'mean squared eror'", "'mean_squared_error'"),
    (lambda: tfgc.train_step(net(), 3, "sgd"), "no loss 3", "such as 'mse', or a function"),
    (lambda: tfgc.train_step(net(), [], "sgd"), "loss=[]", "such as 'mse', or a function"),
    (lambda: tfgc.train_step(net(), ["mse", 3], "sgd"), "no loss 3", "such as 'mse', or a function"),
    (lambda: tfgc.train_step(net(), keras.metrics.Mean, "sgd"), "Mean", "give a keras.Loss"),
    (lambda: tfgc.train_step(net(), {"out": "mse"}, "sgd"), "no output 'out'", "give its loss alone"),
    (lambda: tfgc.train_step(two_outputs(), {"left": "mse", "rihgt": "mse"}, "sgd"), "'rihgt'", "did you mean 'right'"),
    (lambda: tfgc.train_step(two_outputs(), "mse", "sgd", metrics={"up": "mae"}), "'up'", "it has 'left', 'right'"),
    (lambda: tfgc.train_step(net(), "mse", "sgd", metrics=["maee"]), "'maee'", "did you mean 'mae'"),
    (lambda: tfgc.train_step(net(), "mse", "sgd", metrics="mae"), "metrics='mae'", "give a list, metrics=['mae']"),
    (lambda: tfgc.train_step(net(), "mse", "sgd", jit_compile="auto"), "jit_compile='auto'", "True or False"),
    (lambda: tfgc.train_step(net(), "mse", "sgd", run_eagerly=1), "run_eagerly=1", "True or False"),
    (lambda: tfgc.disable(3), "3 is not", "give the model itself"),
    (lambda: tfgc.recompute(3), "not 3", "takes a function, a layer or a model"),
    (lambda: tfgc.split(net(), "two"), "n='two'", "an integer >= 1"),
    (lambda: tfgc.split(net(), 99), "split into n=99", "the model has 3 nodes"),
    (lambda: tfgc.verify(net(), None, X[:0]), "no samples", "give a batch"),
    (lambda: tfgc.verify(net(), other(), X, modes=["lazy"]), "'lazy'", "some of eager, compiled, graph, xla"),
    (lambda: tfgc.verify(net(), other(), X, modes=3), "modes=(3,)", "some of eager, compiled, graph, xla"),
    (lambda: tfgc.verify(net(), None, (X, X[:, :4]), loss="msee"), "'msee'", "did you mean 'mse'"),
    (lambda: tfgc.verify(eager_only(), None, X, layers=["dense*"]), "cannot be called", "use TensorFlow op"),
    (lambda: tfgc.verify(net(), None, (X, X), layers=["dense"], loss="mse"), "the targets", "Give y as fit does"),
    (lambda: tfgc.verify(net(), None, (X, X), layers=["dense"], loss=broken), "go with broken", "or another loss="),
    (lambda: tfgc.verify(not_in_xla(), None, X, layers=["dense*"], modes="xla"), "('xla',)", "leave this mode out"),
    (lambda: tfgc.zoo.build("sample_cnnn"), "'sample_cnnn'", "did you mean 'sample_cnn'"),
    (lambda: tfgc.compare(net(), 2), "<Sequential name=", "give a function that builds the model"),
    (lambda: tfgc.compare("sample_cnn", 2, 3), "no strategy 3", "available: articulation"),
    (lambda: tfgc.compare("sample_cnn", 2, budget="x"), "budget='x'", "a share of the plain step"),
    (lambda: tfgc.compare("sample_cnn", 2, modes=3), "mode=3", "one of eager, compiled, graph, xla"),
    (lambda: tfgc.compare("sample_cnn", 2, plans=3), "plans: 3", "the path of one"),
    (lambda: tfgc.max_batch("sample_cnn", "lots"), "budget='lots'", "such as 4_000_000_000 or '4GB'"),
    (lambda: tfgc.zoo.build(3), "3 is no name", "such as 'resnet50'"),
    (lambda: tfgc.zoo.build("none.keras"), "'none.keras'", "that model.save wrote"),
    (lambda: tfgc.zoo.build("no_module:f"), "'no_module:f'", "written module:function"),
    (lambda: tfgc.zoo.build("sample_cnn", 0), "image_size=0", "an integer >= 1"),
    (lambda: tfgc.Plan.from_json("{hello"), "line 1 column 2", "make it again with tfgc.plan"),
    (lambda: tfgc.compiled_memory(net(), 0), "batch_size=0", "an integer >= 1"),
    (lambda: tfgc.compiled_memory(keras.Sequential([L.Dense(3)], name="bare"), 4), "'bare'", "call it on a batch"),
    (lambda: tfgc.compiled_memory(Own(), example=(X, X[:, :3])), "is not built", "call it on a batch"),
    (lambda: tfgc.compiled_memory(net(), 4, optimizer="adamm"), "'adamm'", "did you mean 'adam'"),
    (lambda: tfgc.compiled_memory(net(), example=(X, X[:, :4]), loss="msee"), "'msee'", "did you mean 'mse'"),
    (lambda: tfgc.compiled_memory(net(), 4, target="h900"), "target='h900'", "did you mean 'h100'"),
]  # fmt: skip
LINES = [
    ("plann", "'plann'", "Did you mean"),
    ("plan", "NAME", "Missing argument"),
    ("plan sample_cnn", "--batch-size", "Missing option"),
    ("plan sample_cnn --batch-size two", "'two'", "not a valid integer"),
    ("plan sample_cnn --batch-size 2 --bugdet 3", "'--bugdet'", "'--budget'"),
    ("plan sample_cnn --batch-size 2 --mode lazy", "'lazy'", "'graph', 'xla'"),
    ("plan sample_cnn --batch-size 2 --option segments", "'segments'", "such as segments=8"),
    ("plan sample_cnn --batch-size 2 --input x", "'x'", "tokens=128"),
    ("plan sample_cnn --batch-size 2 --json x", "'x'", "does not end in .json"),
    ("plan sample_cnn --batch-size 2 --image-size 0", "0 is not", "range x>=1"),
    ("plan 'sample_cnn(a)' --batch-size 2", "'sample_cnn(a)'", "did you mean 'sample_cnn'"),
    ("plan sample_cnn --batch-size 2 -o /no/x.json", "'/no/x.json'", "No such file or directory"),
    ("plan sample_cnn --batch-size 2 --example no_module:f", "'no_module:f'", "written module:function"),
    ("explain sample_cnn --batch-size 2 --plan none.json", "'none.json'", "No such file or directory"),
    ("sweep sample_cnn --batch-size 2 --points 1", "1 is not", "range x>=2"),
    ("verify test_messages:eager_only --batch-size 2 --layers dense*", "'eager_only' cannot be", "use TensorFlow op"),
    ("compare sample_cnn --batch-size 2 --plot x.pdf", "'x.pdf'", "does not end in .png"),
    ("report none.json", "'none.json'", "No such file or directory"),
    ("max-batch sample_cnn --budget lots", "budget='lots'", "'4GB'"),
    ("zoo --jsn", "'--jsn'", "'--json'"),
]


def nothing_saved():
    model = tfgc.enable(keras.Sequential([keras.Input((8,)), L.Dense(2000), L.Dense(200)]))
    model.compile("adam", "mse")
    model.train_on_batch(X, X[:, :1])


class OwnEagerStep(Own):
    def train_step(self, data):
        return {"loss": float(tf.reduce_sum(self(data)))}


# What warns, the kind, what it is about, the reason, and the way out.
WARNINGS = [
    (
        lambda: tfgc.recompute(lambda x: x * float(tf.reduce_sum(x)))(tf.ones(3)), tfgc.NotReplayableWarning,
        "<lambda> is not recomputed", "it cannot be traced (TypeError: float() argument", "Use TensorFlow operations",
    ),
    (
        nothing_saved, tfgc.NothingSavedWarning,
        "trains as before", "weights and optimizer slots are", "A larger batch",
    ),
    (
        lambda: tfgc.plan(OwnEagerStep(), example=X), UserWarning,
        "'own_eager_step", "float() argument must be", "leave room for it in a budget",
    ),
]  # fmt: skip


def check(said, given, way_out):
    assert "\n" not in said
    assert len(said) < 600
    assert given in said
    assert way_out in said


@pytest.mark.parametrize(("call", "given", "way_out"), CALLS, ids=[f"{given} {way_out}" for _, given, way_out in CALLS])
def test_a_mistake_in_python_is_answered(call, given, way_out):
    with pytest.raises(tfgc.TfgcError) as error:
        call()
    check(str(error.value), given, way_out)


@pytest.mark.parametrize(("line", "given", "way_out"), LINES, ids=[line for line, _, _ in LINES])
def test_a_mistake_on_the_command_line_is_answered(line, given, way_out, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    try:
        CliRunner().invoke(cli, shlex.split(line), standalone_mode=False, catch_exceptions=False)
    except tfgc.TfgcError as error:
        said = str(error)
    except click.ClickException as error:
        said = error.format_message()
    check(said, given, way_out)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("call", "kind", "given", "reason", "way_out"), WARNINGS, ids=[w[2] for w in WARNINGS])
def test_a_warning_says_why_and_what_to_do(call, kind, given, reason, way_out):
    with pytest.warns(kind) as caught:
        call()
    (message,) = [str(warning.message) for warning in caught]
    check(message, given, way_out)
    assert reason in message


def test_the_least_share_that_a_message_names_works_and_less_does_not():
    tfgc.plan(deep(), 256, budget="77%")
    with pytest.raises(tfgc.InfeasibleBudgetError, match="Use at least 77 %"):
        tfgc.plan(deep(), 256, budget="76%")
