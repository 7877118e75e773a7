"""`compare`, `max_batch`, fronts and shell commands for models without a graph of layers."""

import dataclasses
import json
import pickle
import typing

import keras
import numpy as np
import pytest
import tensorflow as tf
from click.testing import CliRunner
from equality import noise

import tfgc
from tfgc._cli.group import cli
from tfgc._errors import OptionError, UnsupportedModelError
from tfgc._measure import case_choice, examples, max_batch, process, worker
from tfgc._planning import sweep
from tfgc._records.job import MaxBatchJob, PredictionJob
from tfgc._records.measurement import Measurement, Results, Study
from tfgc._records.results_json import from_json, to_json
from tfgc._report import html_page

L = keras.layers
X, Y = noise(16, 128, 8), noise(16, 128, 8, seed=2)
NAME = ["test_measured_calls:towers", "--example", "test_measured_calls:batch", "--batch-size", "8"]


class Block(L.Layer):
    """Made in `build`, so that a plan for it needs a model that has been built."""

    def build(self, shape):
        self.up, self.drop, self.down = L.Dense(128, activation="gelu"), L.Dropout(0.2), L.Dense(shape[-1])

    def call(self, x, training=None):
        return x + self.down(self.drop(self.up(x), training=training))


class Tower(keras.Model):
    def __init__(self):
        super().__init__(name="tower")
        self.blocks = [Block(name=f"block_{i}") for i in range(4)]

    def call(self, x, training=None):
        for block in self.blocks:
            x = block(x, training=training)
        return x


class Own(Tower):
    """Trains by a step of its own, without targets."""

    def train_step(self, x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self(x, training=True) ** 2)
        weights = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return {"error": loss}


def tower():
    return Tower()


def towers():
    model = Tower()
    model.compile("adam", "mse")
    return model


def own():
    model = Own()
    model.compile("adam")
    return model


class Stack(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden = [L.Dense(8) for _ in range(3)]

    def call(self, x):
        for layer in self.hidden:
            x = layer(x)
        return x


def functional():
    return keras.Sequential([keras.Input((8,)), L.Dense(2)])


def batch():
    return X, Y


def predicted(build, *, front=False, modes="graph", **arguments):
    cases = case_choice.plan_cases(build, 8, steps=1, modes=modes, **arguments)
    found = worker._reply(pickle.loads(pickle.dumps(PredictionJob(tuple(cases), front=front))))
    if found.error is not None:
        raise found.error
    assert not found.failure, found.failure
    return cases, found.found


def least_of_three(case, prediction):
    """The run with the least peak: on a busy machine weight gradients pile up beside what follows."""
    case = dataclasses.replace(case, strategy=None, plan=prediction.plan)
    return min((worker.done(case) for _ in range(3)), key=lambda run: run["peak_bytes"])


@pytest.mark.parametrize(
    ("build", "example"),
    [
        pytest.param(tower, tf.TensorSpec((None, 128, 8)), marks=pytest.mark.slow, id="not compiled"),
        pytest.param(towers, (X, Y), marks=pytest.mark.slow, id="compiled"),
        pytest.param(own, X, marks=pytest.mark.gate, id="own step"),
    ],
)
def test_plain_and_planned_cases_train_alike_and_the_planned_one_in_less(build, example):
    cases, found = predicted(build, example=example)
    assert [case.name for case in cases] == ["plain-eager", "plain-graph", "optimal-graph"]
    plain, ours = (least_of_three(case, found.of(case)) for case in cases[1:])
    assert ours["losses"] == pytest.approx(plain["losses"], rel=1e-5)
    assert len(set(plain["losses"])) == 2
    assert ours["peak_bytes"] < 0.75 * plain["peak_bytes"]
    figures = [found.of(case).predicted for case in cases]
    assert figures[0] is None
    assert figures[2].peak_bytes < 0.75 * figures[1].peak_bytes
    assert figures[2].peak_bytes == pytest.approx(ours["peak_bytes"], rel=0.3)
    assert figures[2].fixed_bytes == figures[1].fixed_bytes > 0
    assert figures[2].overhead > figures[1].overhead == 0
    assert found.of(cases[2]).parts


@pytest.mark.gate
def test_budgets_and_given_plans_are_cases_and_all_are_reported():
    model = towers()
    plan = tfgc.plan(model, example=(X[:8], Y[:8]))
    cases, found = predicted(towers, example=(X, Y), plans=[plan], budget="80%", front=True)
    assert [case.case for case in cases[2:]] == ["budget(80%)", "plan optimal"]
    plain, planned = (worker.done(cases[i]) for i in (1, 3))
    assert planned["losses"] == pytest.approx(plain["losses"], rel=1e-6)
    assert planned["peak_bytes"] < plain["peak_bytes"]
    given = tfgc.Plan.from_json(found.of(cases[3]).plan)
    assert [len(segment.nodes) for segment in given.segments] == [len(segment.nodes) for segment in plan.segments]
    front = found.front
    assert front.points[0].name == "least"
    assert front.points[-1].overhead == 0
    assert {point.name for point in front.others} == {"budget(80%)", "plan optimal"}
    known = [(case, found.of(case)) for case in cases]
    records = tuple(Measurement("towers", c.case, c.mode, 8, predicted=f.predicted, parts=f.parts) for c, f in known)
    results = Results((Study("towers", 8, records, front),))
    assert from_json(to_json(results)) == results
    assert "towers" in html_page.render([results], ".html")


@pytest.mark.gate
def test_a_plan_of_another_model_is_refused():
    wrong = tfgc.plan(functional(), example=X[:8, 0])
    of_others = tfgc.plan(Stack(), example=X[:8, 0])
    for plan in (wrong, of_others):
        with pytest.raises(tfgc.PlanMismatchError, match=r"plan \w+: .* another model"):
            predicted(tower, example=X, plans=plan)


def test_a_sweep_shows_the_front_and_what_budgets_buy():
    front = sweep.sweep(towers(), "towers", 8, example=(X[:8], Y[:8]), points=3, budgets=["90%", "1KB"])
    assert [point.name for point in front.points][:: len(front.points) - 1] == ["least", "plain"]
    assert front.points[0].allocated_bytes < front.points[-1].allocated_bytes
    bought, none = front.choices
    assert bought.point in front.points
    assert bought.point.allocated_bytes <= bought.budget_bytes
    assert none.point is None
    assert none.least_bytes > none.budget_bytes


def search(build, budget, example, **arguments):
    job = MaxBatchJob(build.__name__, (build, None), budget, example=examples.portable(example), **arguments)
    reply = worker._reply(pickle.loads(pickle.dumps(job)))
    assert reply.error is None
    return reply.found


@pytest.mark.gate
def test_the_largest_batch_is_predicted_with_what_the_step_needs_there():
    found = search(towers, 16_000_000, (X, Y))
    assert found.recomputed.batch_size > 1.5 * found.plain.batch_size > 0
    assert found.optimizer is None
    for way in (found.plain, found.recomputed):
        assert 10_000_000 < way.needed_bytes <= 16_000_000
    plan = tfgc.Plan.from_json(found.recomputed.plan)
    assert plan.batch_size == found.recomputed.batch_size
    at = examples.batch(examples.portable((X, Y)), plan.batch_size)
    assert tfgc.estimate(towers(), plan=plan, example=at).needed_bytes == found.recomputed.needed_bytes


@pytest.mark.gate
def test_a_model_that_is_not_compiled_gets_the_optimizer_that_is_asked_for():
    sgd, adam = (search(tower, 16_000_000, X, optimizer=name) for name in ("sgd", None))
    assert sgd.fixed_bytes < adam.fixed_bytes
    assert sgd.optimizer["class_name"] == "SGD"


@pytest.mark.slow
def test_child_processes_measure_the_largest_batch():
    found = max_batch.max_batch(towers, "16MB", example=(X, Y), steps=1)
    assert found.confirmed
    assert found.batch_size > found.plain_batch_size > 0


@pytest.mark.slow
def test_child_processes_measure_them_for_a_report(tmp_path):
    path = tmp_path / "results.json"
    run("compare", *NAME, "--steps", "1", "--json", str(path))
    page = tmp_path / "report.html"
    run("report", str(path), "-o", str(page))
    assert "optimal" in page.read_text()


def test_samples_are_repeated_and_left_out_and_what_has_none_stays():
    data = examples.portable(({"a": np.arange(6).reshape(3, 2), "rate": 0.5}, tf.TensorSpec((3,), "int32"), None))
    for size in (2, 7):
        (inputs, targets, none) = examples.batch(data, size)
        np.testing.assert_array_equal(inputs["a"][:, 0] // 2, np.arange(size) % 3)
        assert float(inputs["rate"]) == 0.5
        assert targets.shape == (size,)
        assert none is None


class Pair(typing.NamedTuple):
    x: object
    y: object


def test_an_example_may_be_of_any_structure_that_tensorflow_knows():
    data = examples.portable(Pair({"b": X, "a": [tf.TensorSpec((16, 3))]}, Y))
    made = examples.batch(data, 4)
    assert isinstance(made, Pair)
    assert [part.shape[0] for part in tf.nest.flatten(made)] == [4, 4, 4]
    assert examples.samples(data) == 16


class Penalized(Tower):
    """Trained by what it adds to its loss, without targets."""

    def call(self, x, training=None):
        x = super().call(x, training=training)
        self.add_loss(tf.reduce_mean(x**2))
        return x


def penalized():
    model = Penalized()
    model.compile("sgd")
    return model


def test_a_model_that_is_trained_by_the_losses_it_adds_needs_no_targets():
    cases, found = predicted(penalized, example=X)
    assert found.of(cases[-1]).plan is not None
    assert len(worker.done(cases[0])["losses"]) == 2


def test_a_spec_of_strings_stands_for_words():
    (words,) = examples.batch(examples.portable((tf.TensorSpec((None, 2), "string"),)), 3)
    assert (words.dtype, words.shape) == ("string", (3, 2))


@pytest.mark.parametrize("example", [(X, tf.TensorSpec((None, 4))), (tf.TensorSpec((None, 4)), X)], ids=["xy", "yx"])
def test_an_open_spec_has_the_samples_of_the_array_beside_it(example):
    data = examples.portable(example)
    assert examples.samples(data) == len(X)
    assert [part.shape[0] for part in examples.batch(data, 5)] == [5, 5]


WRONG = {
    "no example": (tower, {}, UnsupportedModelError, r"example=\(x, y\)"),
    "targets": (towers, {"example": X}, OptionError, r"takes targets: give example=\(x, y\)"),
    "strategy": (tower, {"example": X, "wanted": "sqr"}, OptionError, "did you mean 'sqrt'"),
    "shapes": (tower, {"example": X, "input_shapes": {"a": (3,)}}, OptionError, "exclude each other"),
    "no batch": (tower, {"example": "x"}, OptionError, "give a batch as fit takes it"),
    "a graph": (functional, {"example": X}, OptionError, "has one"),
    "structure": (tower, {"example": {"a": X, "b": X}}, UnsupportedModelError, "cannot be called on this example"),
    "sparse": (tower, {"example": tf.sparse.from_dense(X[:, 0])}, OptionError, "a SparseTensor cannot be measured"),
    "ragged": (tower, {"example": tf.RaggedTensorSpec((8, None))}, OptionError, "RaggedTensorSpec cannot be measured"),
    "open": (tower, {"example": tf.TensorSpec((4, None, 8))}, OptionError, "is open"),
}


@pytest.mark.parametrize("name", WRONG)
def test_bad_input(name):
    build, arguments, error, message = WRONG[name]
    with pytest.raises(error, match=message):
        predicted(build, **arguments)


def test_a_sparse_matrix_of_scipy_is_refused():
    """It has a shape and a dtype, as specs have, and was measured as dense noise."""
    sparse = pytest.importorskip("scipy.sparse")
    with pytest.raises(OptionError, match="a csr_array cannot be measured"):
        examples.portable(sparse.csr_array(X[:, 0]))


def test_max_batch_refuses_what_applies_to_graphs_before_it_starts(monkeypatch):
    monkeypatch.setattr(process, "ask", None)
    for options in ({"strategy": "sqrt"}, {"segments": 4}):
        with pytest.raises(OptionError, match="exclude each other"):
            tfgc.max_batch(tower, "1GB", example=X, **options)


def run(*words):
    result = CliRunner().invoke(cli, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.gate
def test_the_shell_plans_explains_and_verifies_them(tmp_path):
    path = str(tmp_path / "plan.json")
    printed = run("plan", *NAME, "-o", path)
    assert "optimal" in printed
    assert "block_2" in run("explain", *NAME, "--plan", path)
    assert json.loads(run("sweep", *NAME, "--points", "2", "--json"))["studies"]
    assert run("verify", *NAME, "--plan", path, "--mode", "graph", "--steps", "1").startswith("EQUAL")
    for example, message in (
        ("test_measured_calls:bach", "has no attribute 'bach'"),
        ("batch", "written module:function"),
        ("test_measured_calls:search", "cannot be called"),
    ):
        with pytest.raises(OptionError, match=message):
            run("plan", NAME[0], "--batch-size", "8", "--example", example)
    with pytest.raises(OptionError, match="--example my_module:batch"):
        run("plan", NAME[0], "--batch-size", "8")
    with pytest.raises(OptionError, match="has one"):
        run("plan", "sample_cnn", "--image-size", "16", *NAME[1:])
