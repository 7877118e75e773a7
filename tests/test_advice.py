"""Each message that says what to do instead says what works: the mistake, words of the message, the advised call."""

import functools
import shlex
import subprocess
import sys
import textwrap

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfgc

L = keras.layers
UNITS = {"first": 8, "mid": 8, "out": 4}
X, Y = np.ones((4, 8), "float32"), np.ones((4, 4), "float32")


def net():
    return keras.Sequential(
        [keras.Input((8,)), L.Dense(8, name="first"), L.Dense(8, name="mid"), L.Dense(4, name="out")]
    )


def deep():
    return keras.Sequential([keras.Input((64,)), *(L.Dense(64, "tanh") for _ in range(9))])


def bare(built=False):
    model = keras.Sequential([L.Dense(8), L.Dense(4)])
    if built:
        model(X)
    return model


def open_lengths():
    inputs = keras.Input((None, 8), name="tokens")
    return keras.Model(inputs, L.Dense(8)(L.Dense(8, "tanh")(L.Dense(8, "tanh")(inputs))))


class Own(keras.Model):
    def __init__(self):
        super().__init__()
        self.first, self.second = L.Conv1D(4, 3, padding="same"), L.Dense(8)

    def call(self, x):
        return self.second(self.first(x))


def own():
    model = Own()
    model(np.ones((1, 6, 8)))
    return model


SIGNATURES = {"batch": tf.TensorSpec((None, 16, 8)), "lengths": tf.TensorSpec((None, None, 8))}


def fit(model, kind):
    """Train on batches whose number of samples, or lengths too, the data does not say."""
    signature = SIGNATURES[kind]
    batches = [np.ones((4, n if kind == "lengths" else 16, 8)) for n in (12, 16)]
    data = tf.data.Dataset.from_generator(lambda: ((x, x) for x in batches), output_signature=(signature, signature))
    model.compile("sgd", "mse")
    return model.fit(data.apply(tf.data.experimental.assert_cardinality(len(batches))), shuffle=False, verbose=0)


def ahead(model, kind, **sizes):
    """Plan ahead, then train on such data."""
    fit(tfgc.enable(model, tfgc.plan(model, budget="1GB", **sizes), verbose=0), kind)


def len_of(x):
    return tf.shape(x)[0]


plan, later = functools.partial(tfgc.plan, batch_size=4), functools.partial(tfgc.enable, budget="1GB", verbose=0)
ADVICE = [
    # Budgets
    (lambda: plan(net(), budget=1.5), "write '1.5GB' for gigabytes", lambda: plan(net(), budget="1.5GB")),
    (lambda: plan(deep(), budget=1.5), "or '70%' (all of it: 1.0), for", lambda: tfgc.plan(deep(), 2048, budget="70%")),
    (lambda: tfgc.enable(net(), budget=1), "(all of it: 1.0)", lambda: plan(net(), budget=1.0)),
    (lambda: plan(net(), budget="70"), "or '70%' for that share", lambda: tfgc.plan(deep(), 2048, budget="70%")),
    (lambda: plan(net(), budget="70"), "write '70GB' for", lambda: plan(net(), budget="70GB")),
    (lambda: plan(net(), budget="2 giga"), "or 'auto'", lambda: plan(net(), budget="auto")),
    (lambda: tfgc.plan(net(), budget="1GB"), "give batch_size=32", lambda: tfgc.plan(net(), 32, budget="1GB")),
    (lambda: tfgc.estimate(net()), "give batch_size=32", lambda: tfgc.estimate(net(), batch_size=32)),
    (lambda: tfgc.pareto(net()), "give batch_size=32", lambda: tfgc.pareto(net(), batch_size=32)),
    (lambda: tfgc.max_batch(net, "70%"), "bytes such as '8GB', or 'auto'", None),
    # Functions
    (lambda: tfgc.function("70%"), "tfgc.function(budget='70%')", lambda: tfgc.function(budget="70%")(len_of)(X)),
    (lambda: tfgc.function(segments=2), "strategy='uniform'",
     lambda: tfgc.function(strategy="uniform", segments=2)(len_of)(X)),
    (lambda: tfgc.function(tf.function(len_of)), "give its python_function",
     lambda: tfgc.function(tf.function(len_of).python_function)(X)),
    # Plans
    (lambda: tfgc.enable(net(), "sqrt"), "give strategy='sqrt'", lambda: tfgc.enable(net(), strategy="sqrt")),
    (lambda: tfgc.enable(net(), "Sqrrt"), "give strategy='sqrt'", lambda: tfgc.enable(net(), strategy="sqrt")),
    (lambda: tfgc.enable(net(), "70%"), "give budget='70%'", lambda: tfgc.enable(net(), budget="70%")),
    (lambda: tfgc.enable(net(), 32), "give strategy='optimal'", lambda: tfgc.enable(net(), strategy="optimal")),
    (lambda: tfgc.enable(net(), "p.json"), "tfgc.Plan.load('p.json') reads the file", None),
    (lambda: tfgc.enable(net(), plan(net()).to_json()), "tfgc.Plan.from_json(text)",
     lambda: tfgc.enable(net(), tfgc.Plan.from_json(plan(net()).to_json()))),
    (lambda: tfgc.estimate(net(), 4, "sqrt"), "tfgc.plan(model, batch_size, strategy='sqrt')",
     lambda: tfgc.estimate(net(), 4, tfgc.plan(net(), 4, strategy="sqrt"))),
    (lambda: tfgc.verify(net(), "70%", X), "tfgc.plan(model, batch_size, budget='70%')",
     lambda: tfgc.plan(deep(), 2048, budget="70%")),
    (lambda: tfgc.verify(net(), X, X), "tfgc.plan(model, batch_size, strategy='optimal')",
     lambda: tfgc.verify(net(), tfgc.plan(net(), 4, strategy="optimal"), X)),
    (lambda: tfgc.compiled_memory(net(), 4, "sqrt"), "tfgc.plan(model, batch_size, strategy='sqrt')",
     lambda: tfgc.plan(net(), 4, strategy="sqrt")),
    (lambda: tfgc.enable(net(), strategy=plan(net())), "tfgc.enable(model, plan)",
     lambda: tfgc.enable(net(), plan(net()))),
    (lambda: plan(net(), strategy="sqrt:2"), "strategy='sqrt', segments=2",
     lambda: plan(net(), strategy="sqrt", segments=2)),
    (lambda: plan(net(), strategy="OPTIMAL"), "did you mean 'optimal'", lambda: plan(net(), strategy="optimal")),
    (lambda: plan(net(), segments=2), "articulation, sqrt, uniform take it",
     lambda: plan(net(), strategy="sqrt", segments=2)),
    (lambda: plan(net(), strategy="manual"), "needs the option keep",
     lambda: plan(net(), strategy="manual", keep="mid")),
    (lambda: tfgc.Plan.from_json("plan.json"), "tfgc.Plan.load(path) reads a file", None),
    # Sizes
    (lambda: plan(open_lengths(), budget="1GB"), "give input_shapes={'tokens': (128, 8)}",
     lambda: plan(open_lengths(), budget="1GB", input_shapes={"tokens": (128, 8)})),
    (lambda: tfgc.estimate(open_lengths(), 4), "give input_shapes={'tokens': (128, 8)}",
     lambda: tfgc.estimate(open_lengths(), 4, input_shapes={"tokens": (128, 8)})),
    (lambda: tfgc.pareto(open_lengths(), 4), "or example=batch",
     lambda: tfgc.pareto(open_lengths(), 4, example=np.ones((4, 16, 8)))),
    (lambda: plan(open_lengths(), input_shapes=16), "as {'tokens': (128,)}",
     lambda: plan(open_lengths(), input_shapes={"tokens": (128, 8)})),
    (lambda: plan(open_lengths(), input_shapes=(16, 8)), "as {'tokens': (128,)}",
     lambda: plan(open_lengths(), input_shapes={"tokens": (128, 8)})),
    (lambda: fit(later(open_lengths()), "lengths"), "tfgc.plan(model, example=batch, budget='1GB')",
     lambda: ahead(open_lengths(), "lengths", example=np.ones((4, 16, 8)))),
    (lambda: fit(later(own()), "lengths"), "tfgc.plan(model, example=batch, budget='1GB')",
     lambda: ahead(own(), "lengths", example=np.ones((4, 16, 8)))),
    (lambda: fit(later(own()), "batch"), "tfgc.plan(model, example=batch, budget='1GB')",
     lambda: ahead(own(), "batch", example=np.ones((4, 16, 8)))),
    (lambda: tfgc.plan(own(), example=np.ones((4, 6, 3))), "on a batch of shapes (4, 6, 3): Input 0",
     lambda: tfgc.plan(own(), example=np.ones((4, 6, 8)))),
    (lambda: tfgc.plan(own(), example=np.ones((6, 8))), "Give a batch as fit takes it",
     lambda: tfgc.plan(own(), example=(np.ones((4, 6, 8)), np.ones((4, 4, 8))))),
    (lambda: tfgc.plan(own(), example=tf.TensorSpec((None, 6, 8))), "give each a number",
     lambda: tfgc.plan(own(), 4, example=tf.TensorSpec((None, 6, 8)))),
    (lambda: tfgc.plan(own(), 4), "give a batch, or its specs", lambda: tfgc.plan(own(), example=np.ones((4, 6, 8)))),
    (lambda: tfgc.plan(net(), X), "example=batch, or the number", lambda: tfgc.plan(net(), example=X)),
    (lambda: tfgc.plan(net(), example=X[0]), "x[None] for one", lambda: tfgc.plan(net(), example=X[0][None])),
    (lambda: tfgc.plan(bare(), 4), "call it once on a batch", lambda: tfgc.plan(bare(built=True), 4)),
    (lambda: tfgc.split(own(), 2), "tfgc.enable(model)", lambda: tfgc.enable(own())),
    (lambda: tfgc.train_step(own(), "mse", "sgd"), "tfgc.enable(model)", lambda: tfgc.enable(own())),
    # Others
    (lambda: tfgc.recompute(tf.ones(3)), "tfgc.recompute(fn)(x)", lambda: tfgc.recompute(tf.tanh)(tf.ones(3))),
    (lambda: tfgc.recompute([tf.tanh, tf.exp]), "one at a time", lambda: [*map(tfgc.recompute, (tf.tanh, tf.exp))]),
    (lambda: tfgc.enable(net(), layers=[net().layers[0]]), "did you mean 'first'",
     lambda: tfgc.enable(net(), layers=["first"])),
    (lambda: tfgc.verify(net(), None, X, loss="mse"), "as (x, y)",
     lambda: tfgc.verify(net(), None, (X, Y), loss="mse", modes="graph", steps=1)),
    (lambda: tfgc.train_step(net(), "mse", "sgd", metrics="mae"), "metrics=['mae']",
     lambda: tfgc.train_step(net(), "mse", "sgd", metrics=["mae"])),
    (lambda: tfgc.plan(net(), 4, optimizer="Adamm"), "did you mean 'adam'",
     lambda: tfgc.plan(net(), 4, optimizer="adam")),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*input ran out of data", "ignore::tfgc.NothingSavedWarning")
@pytest.mark.parametrize(("mistake", "words", "advised"), ADVICE, ids=[f"{i} {a[1]}" for i, a in enumerate(ADVICE)])
def test_what_a_message_advises_works(mistake, words, advised):
    with pytest.raises(tfgc.TfgcError) as error:
        mistake()
    assert words in str(error.value)
    if advised is not None:
        advised()


@pytest.mark.parametrize("budget", ["2G", "2g", "2 GB", "2Gi", "Auto", " AUTO"])
def test_budgets_as_people_write_them(budget):
    assert plan(net(), budget=budget).strategy == "budget"
    assert tfgc.enable(net(), budget=budget, verbose=0)


# Wrong options, and words of what is said of each before TensorFlow is imported.
LINES = {
    "plan sample_cnnn --batch-size 2": "did you mean 'sample_cnn'?",
    "plan 'sample_cnn(1, 2)' --batch-size 2": "it takes at most 1: image_size",
    "plan 'resnet50(3)' --batch-size 2": "only tfgc's own networks take arguments",
    "plan none.keras --batch-size 2": "there is no file 'none.keras'",
    "plan no_module:f --batch-size 2": "No module named 'no_module'; it is written module:function",
    "plan sample_cnn --batch-size 0": "0 is not in the range x>=1",
    "plan sample_cnn --batch-size two": "'two' is not a valid integer",
    "plan sample_cnn --batch-size 2 --image-size 0": "0 is not in the range x>=1",
    "plan resnet50 --batch-size 2 --budget lots": "budget='lots': must be",
    "plan resnet50 --batch-size 2 --budget 1.5": "write '1.5GB' for gigabytes",
    "plan resnet50 --batch-size 2 --strategy sqrrt": "did you mean 'sqrt'?",
    "plan resnet50 --batch-size 2 --strategy sqrt --budget 1GB": "does not honour a budget",
    "plan resnet50 --batch-size 2 --strategy sqrt --option segment=3": "did you mean 'segments'?",
    "plan resnet50 --batch-size 2 --strategy sqrt --option segments=x": "segments='x': must be an integer >= 1",
    "plan resnet50 --batch-size 2 --optimizer adamm": "'adamm' is not one of",
    "plan resnet50 --batch-size 2 --mode lazy": "'lazy' is not one of",
    "plan resnet50 --batch-size 2 --target h900": "did you mean 'h100'?",
    "plan resnet50 --batch-size 2 --target h100": "--mode xla",
    "plan resnet50 --batch-size 2 --example no_module:f": "No module named 'no_module'",
    "plan resnet50 --batch-size 2 -o /no/x.json": "cannot write '/no/x.json'",
    "explain resnet50 --batch-size 2 --plan none.json": "cannot read the plan 'none.json'",
    "explain resnet50 --batch-size 2 --strategy manual": "needs the option keep=...",
    "sweep resnet50 --batch-size 2 --points 1": "1 is not in the range x>=2",
    "sweep resnet50 --batch-size 2 --budgets 1GB,lots": "budget='lots': must be",
    "sweep resnet50 --batch-size 2 --plot x.pdf": "does not end in .png",
    "verify resnet50 --batch-size 2 --mode graph,lazy": "mode='lazy': must be one of",
    "verify resnet50 --batch-size 2 --layers ,": "--layers: name at least one",
    "verify resnet50 --batch-size 2 --steps 0": "0 is not in the range x>=1",
    "compare sample_cnnn --batch-size 2": "did you mean 'sample_cnn'?",
    "compare resnet50 --batch-size 2 --strategy sqrt:0": "segments=0: must be an integer >= 1",
    "compare resnet50 --batch-size 2 --budget lots": "budget='lots': must be",
    "compare resnet50 --batch-size 2 --plan none.json": "cannot read the plan 'none.json'",
    "max-batch sample_cnnn --budget 1GB": "did you mean 'sample_cnn'?",
    "max-batch resnet50 --budget 70%": "must be bytes such as '8GB', or 'auto'",
    "max-batch resnet50 --budget 1GB --optimizer adamm": "'adamm' is not one of",
    "compile resnet50 --batch-size 2 --target h900": "did you mean 'h100'?",
    "compile resnet50 --batch-size 2 --budget lots": "budget='lots': must be",
    "compile resnet50 --batch-size 2 --timeout 0": "0.0 is not in the range x>0",
    "report none.json": "cannot read 'none.json'",
    "zoo nothing": "no network has 'nothing'",
}


def test_a_wrong_option_in_the_shell_is_told_before_tensorflow_loads(tmp_path):
    code = textwrap.dedent(f"""
        import sys
        from click.testing import CliRunner
        from tfgc._cli.group import cli
        for line in {[shlex.split(line) for line in LINES]!r}:
            error = CliRunner().invoke(cli, line, standalone_mode=False).exception
            print(getattr(error, "message", error), [m for m in ("tensorflow", "keras") if m in sys.modules])
    """)
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert not ended.stderr
    said = ended.stdout.splitlines()
    assert len(said) == len(LINES)
    for line, (asked, words) in zip(said, LINES.items()):
        assert words in line, asked
        assert line.endswith(" []"), asked
    assert not list(tmp_path.iterdir())
