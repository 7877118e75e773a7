"""The largest batch that fits in a budget: predicted, and measured around the answer."""

import itertools
import json

import keras
import pytest
from click.testing import CliRunner
from equality import fresh

import tfgc
from tfgc import InfeasibleBudgetError, Measurement
from tfgc._core.plan import Plan
from tfgc._errors import OptionError, TfgcError
from tfgc._measure import batch_search, compare, predict_max_batch, process, worker
from tfgc._planning import budgets, free_memory
from tfgc._records import batch_limit
from tfgc._records.job import Case, MaxBatchJob
from tfgc._units import format_bytes


def wide(units=4096):
    """Eight layers whose only large tensor is the batch's: 4 * units bytes a sample and layer."""
    x = inputs = keras.Input((8,))
    for _ in range(8):
        x = keras.layers.Dense(units, use_bias=False)(x)
        x = keras.layers.Activation("tanh")(x)
        x = keras.layers.Dense(8, use_bias=False)(x)
    return keras.Model(inputs, x)


def conv(image_size=32):
    x = inputs = keras.Input((image_size, image_size, 3))
    for _ in range(5):
        x = keras.layers.Conv2D(8, 3, padding="same", activation="relu")(x)
    return keras.Model(inputs, keras.layers.Dense(2)(keras.layers.GlobalAveragePooling2D()(x)))


def fixed_batch():
    x = inputs = keras.Input(batch_shape=(4, 8))
    return keras.Model(inputs, keras.layers.Dense(8)(x))


def open_size():
    x = inputs = keras.Input((None, 8))
    return keras.Model(inputs, keras.layers.Dense(8)(x))


def searched(build, budget, strategy=None, optimizer="sgd", **options):
    """What a child process would predict, here and now."""
    return predict_max_batch.predict_max_batch(
        build(), MaxBatchJob(build.__name__, (build, None), budget, strategy, options, optimizer=optimizer)
    )


def test_what_variables_hold_is_not_free_but_part_of_the_step(monkeypatch):
    monkeypatch.setattr(free_memory, "free_bytes", lambda: 10**6)
    model = conv()
    assert searched(lambda: model, "auto", "keep_all").budget_bytes == 900_000 + budgets.resident_bytes(model) > 900_000


# The search by itself


def test_a_straight_line_is_met_exactly_and_in_few_looks():
    for base, each, budget in itertools.product((0, 1000), (1, 7, 90), (100, 1090, 1091, 99_999, 12_345_678)):
        looks = set()

        def need(batch, base=base, each=each, looks=looks):
            looks.add(batch)
            return base + each * batch

        answer = max(0, min((budget - base) // each, 2**20))
        assert batch_search.largest_fitting(need, budget, 16)[0] == answer, (base, each, budget)
        assert len(looks) <= 8, (base, each, budget)


def test_no_batch_beyond_the_most_is_looked_at(monkeypatch):
    assert batch_search.largest_fitting(lambda batch: 5, 10, 16) == (2**20, None, True)
    monkeypatch.setattr(batch_search, "MOST", 100)
    assert batch_search.largest_fitting(lambda batch: batch, 1000, 16) == (100, None, True)


# The prediction


@pytest.mark.gate
def test_hand_arithmetic():
    """Weights 8 * 2 * 8 * 4096 floats and one gradient of 8 * 4096; what a sample needs is counted below."""
    weights = 8 * 2 * 8 * 4096 * 4
    found = searched(wide, weights + 5_000_000)
    assert found.fixed_bytes == weights
    # tanh's output is kept and read by the next kernel's gradient; two small tensors a block and the batch itself.
    sample = (found.plain.needed_bytes - weights) / found.plain.batch_size
    assert 8 * 4096 * 4 <= sample <= 11 * 4096 * 4
    # Recomputed, two or three of these are alive at once.
    assert 2 * 4096 * 4 <= (found.recomputed.needed_bytes - weights) / found.recomputed.batch_size <= 4 * 4096 * 4
    assert found.recomputed.batch_size > 2.5 * found.plain.batch_size
    step = tfgc.estimate(wide(), found.plain.batch_size, optimizer="sgd", loss="mse")
    assert found.plain.needed_bytes == step.needed_bytes <= found.budget_bytes


@pytest.mark.gate
def test_a_larger_budget_never_gives_a_smaller_batch():
    found = [searched(conv, budget) for budget in (700_000, 1_000_000, 1_400_000)]
    for way in ("plain", "recomputed"):
        batches = [getattr(each, way).batch_size for each in found]
        assert batches == sorted(batches)
        assert batches[0] < batches[-1]


def test_the_plan_of_the_answer_fits_and_is_for_that_batch():
    found = searched(lambda: fresh(conv), 5_000_000)
    plan = Plan.from_json(found.recomputed.plan)
    assert plan.batch_size == found.recomputed.batch_size
    assert len(plan.segments) > 1
    model = fresh(conv)
    needed = [
        tfgc.estimate(model, size, plan, optimizer="sgd", loss="mse").needed_bytes
        for size in (plan.batch_size, 2 * plan.batch_size)
    ]
    assert needed[0] <= 5_000_000 < needed[1]


@pytest.mark.slow
def test_a_strategy_that_honours_a_budget_gets_what_is_left_of_it():
    pytest.importorskip("scipy")
    found = searched(conv, 4_000_000, "ilp")
    assert found.plain.batch_size < found.recomputed.batch_size <= searched(conv, 4_000_000).recomputed.batch_size + 1


@pytest.mark.slow
def test_the_optimizer_is_the_one_of_the_compiled_model():
    def compiled():
        model = conv()
        model.compile("adam", "mse")
        return model

    assert (
        predict_max_batch.predict_max_batch(
            compiled(), MaxBatchJob("c", (compiled, None), 10**6, "keep_all")
        ).optimizer["class_name"]
        == "Adam"
    )
    sgd, adam = budgets.fixed_bytes(compiled(), "sgd"), budgets.fixed_bytes(compiled())
    assert adam == 3 * sgd


# The confirmation


def test_the_confirmation_moves_to_where_measurements_say():
    """Measured: base + 100 a sample, so that 100 samples fit."""
    for predicted, base in itertools.product((1, 40, 95, 99, 100, 101, 105, 160, 400), (0, 5000)):
        runs, budget = [], base + 100 * 100 + 50

        def measure(batch, base=base, runs=runs):
            runs.append(batch)
            return base + 100 * batch

        batch, above, confirmed = batch_search.largest_fitting(measure, budget, predicted, base, runs=True)
        assert confirmed
        assert batch <= 100 < above <= batch + 2
        assert {batch, above} <= set(runs)
        assert len(runs) == len(set(runs)) <= 5


@pytest.mark.parametrize("most", [1, 30, 99, 100, 1000])
def test_running_out_of_memory_counts_as_not_fitting(most):
    """Batches above `most` die without a figure."""
    runs = []

    def measure(batch):
        runs.append(batch)
        return 100 * batch if batch <= most else None

    batch, above, confirmed = batch_search.largest_fitting(measure, 10_000, 100, runs=True)
    assert len(runs) <= 8
    assert batch <= min(most, 100) < above
    assert batch >= 0.85 * min(most, 100)
    assert confirmed == (above - batch <= max(1, batch // 50))


def test_the_bound_on_runs_holds_where_measurements_make_no_sense():
    runs = []

    def measure(batch):
        runs.append(batch)
        return 9_000 if len(runs) % 2 else 11_000

    batch, above, confirmed = batch_search.largest_fitting(measure, 10_000, 100_000, runs=True)
    assert len(runs) <= 5
    assert batch < above
    assert confirmed == (above - batch <= batch // 50)


def test_not_even_one_sample_and_the_most(monkeypatch):
    assert batch_search.largest_fitting(lambda batch: 60, 50, 1, runs=True) == (0, 1, True)
    assert batch_search.largest_fitting(lambda batch: 20 * batch, 50, 1, runs=True)[0] == 2
    monkeypatch.setattr(batch_search, "MOST", 64)
    assert batch_search.largest_fitting(lambda batch: 20, 50, 64, runs=True) == (64, None, True)


# All of it, with hand-made children


def record(case, bytes_per_sample):
    return Measurement(
        case.network, case.case, case.mode, case.batch_size, peak_bytes=1, resident_bytes=100_000,
        peak_bytes_max=bytes_per_sample * case.batch_size,
    )  # fmt: skip


@pytest.fixture
def children(monkeypatch):
    """Predictions made here, and measurements by hand: 30 kB a sample recomputed, 120 kB plain."""
    seen = []

    def run(case):
        seen.append(case)
        return record(case, 120_000 if case.case == "plain" else 30_000)

    monkeypatch.setattr(process, "ask", worker.done)
    monkeypatch.setattr(compare, "run", run)
    return seen


def test_predictions_and_measurements_are_reported(children, capsys):
    found = tfgc.max_batch(conv, "5MB", optimizer=keras.optimizers.SGD(0.5))
    words = capsys.readouterr().err.splitlines()
    assert int(found) == found.batch_size == range(10**6)[found]
    assert found.confirmed
    assert found.best.batch_size * 30_000 <= 4_900_000 < found.best.above * 30_000
    assert found.plain.above == found.plain.batch_size + 1 == 41
    assert words[0].startswith("tfgc: conv: prediction: batch ")
    assert words[1].startswith("tfgc: conv: plain-graph at batch ")
    assert words[-1].startswith("tfgc: conv: least-graph at batch ")
    assert len(words) == 1 + len(found.records)
    assert {case.optimizer["config"]["learning_rate"] for case in children} == {0.5}
    assert all(case.plan is None or Plan.from_json(case.plan) == found.plan for case in children)
    assert found.best.measured_bytes == 100_000 + 30_000 * found.batch_size
    text = repr(found)
    assert "\n" not in text
    assert f"batch {found.batch_size} (measured; predicted {found.predicted_batch_size})" in text
    assert "plain batch 40 (measured" in text
    told = json.loads(json.dumps(batch_limit.facts(found)))
    assert (told["batch_size"], told["plain_batch_size"]) == (found.batch_size, 40)
    assert told["plain"]["measured_bytes"] == 100_000 + 40 * 120_000


def test_the_prediction_alone_runs_nothing(children):
    keras.utils.clear_session()
    found = tfgc.max_batch(conv, 5_000_000, strategy="uniform:4", confirm=False)
    assert children == []
    assert not found.confirmed
    assert found.batch_size == found.predicted_batch_size > found.plain_batch_size > 0
    assert len(found.plan.segments) == 4
    assert found.best.case == "uniform(4)"
    assert "(predicted)" in repr(found)
    keras.utils.clear_session()  # names of layers as in a process of its own
    tfgc.enable(conv(), found.plan)


@pytest.mark.slow
def test_keep_all_answers_for_plain_training(children):
    found = tfgc.max_batch(conv, "5MB", strategy="keep_all")
    assert found.best is found.plain
    assert found.plan is None
    assert found.batch_size == 40
    assert {case.case for case in children} == {"plain"}
    assert len(found.records) == len(children)


@pytest.mark.slow
def test_a_run_that_fails_is_an_error(children, monkeypatch):
    def failed(case):
        return Measurement(case.network, case.case, "graph", case.batch_size, "failed", "no luck")

    monkeypatch.setattr(compare, "run", failed)
    with pytest.raises(TfgcError, match=r"plain-graph of 'conv' cannot be run at batch .*: no luck"):
        tfgc.max_batch(conv, "5MB")


@pytest.mark.gate
def test_measurements_that_never_fit_are_an_error(children, monkeypatch):
    monkeypatch.setattr(compare, "run", lambda case: record(case, 10**9))
    with pytest.raises(InfeasibleBudgetError, match="smallest budget that works is 1,000,100,000"):
        tfgc.max_batch(conv, "5MB")

    def dead(case):
        return Measurement(case.network, case.case, "graph", case.batch_size, "oom", "killed")

    monkeypatch.setattr(compare, "run", dead)
    with pytest.raises(TfgcError, match=r"no batch was measured to fit in 5,000,000 bytes.* 1, ran out of memory"):
        tfgc.max_batch(conv, "5MB")


@pytest.mark.slow
def test_an_impossible_budget_names_the_least_and_the_node(children):
    with pytest.raises(InfeasibleBudgetError, match=r"at a batch of one sample .*smaller input or network") as error:
        tfgc.max_batch(conv, 20_000)
    least = error.value.least
    assert "conv2d" in error.value.node
    assert tfgc.max_batch(conv, least, confirm=False).batch_size >= 1
    with pytest.raises(InfeasibleBudgetError):
        tfgc.max_batch(conv, least - 1)


@pytest.mark.parametrize(
    ("build", "arguments", "message"),
    [
        (conv, {"budget": "60%"}, "budget='60%': must be bytes such as '8GB', or 'auto'"),
        (conv, {"budget": "10"}, "budget='10': must be bytes such as '8GB', or 'auto'"),
        (conv, {"budget": None}, "budget=None: must be a positive number of bytes"),
        (conv, {"budget": 0.7}, "budget=0.7: must be bytes such as '8GB', or 'auto'"),
        (conv, {"budget": "much"}, "budget='much'"),
        (conv, {"budget": 0}, "budget=0"),
        (conv, {"budget": "1GB", "strategy": "sqrrt"}, "did you mean 'sqrt'"),
        (conv, {"budget": "1GB", "strategy": "sqrt", "segment": 3}, "did you mean 'segments'"),
        (conv, {"budget": "1GB", "segments": 3}, "takes no option 'segments'"),
        (conv, {"budget": "1GB", "strategy": "manual"}, "needs the option keep"),
        (conv, {"budget": "1GB", "steps": 0}, "steps=0"),
        (conv, {"budget": "1GB", "image_size": 0}, "image_size=0"),
        (conv, {"budget": "1GB", "memory_limit": "4GB"}, "memory_limit='4GB': must be an integer"),
        (conv, {"budget": "1GB", "optimizer": 3}, "optimizer=3"),
        (conv, {"budget": "1GB", "optimizer": "adan"}, "there is no optimizer 'adan'"),
        (fixed_batch, {"budget": "1GB"}, "declared for batches of 4"),
        (open_size, {"budget": "1GB"}, "input_shapes"),
    ],
)
def test_bad_input(children, build, arguments, message):
    with pytest.raises(OptionError, match=message):
        tfgc.max_batch(build, **arguments)


def test_a_model_in_place_of_its_builder_is_refused():
    with pytest.raises(OptionError, match="a function that builds"):
        tfgc.max_batch(conv(), "1GB")


def test_open_sizes_are_answered(children):
    found = tfgc.max_batch(open_size, "10MB", input_shapes={"keras_tensor": (32, 8)}, confirm=False)
    assert found.batch_size > 1


def test_the_command_prints_a_table_and_json(children, tmp_path):
    from tfgc._cli.commands.max_batch import command

    arguments = ["test_max_batch:conv", "--budget", "5MB", "--optimizer", "sgd", "--image-size", "32"]
    path = tmp_path / "m.json"
    printed = CliRunner().invoke(command, [*arguments, "--json", str(path)], catch_exceptions=False).stdout
    for word in (
        "in 5 MB: batch",
        "plain",
        "least",
        "predicted",
        "measured",
        "times as many samples",
        "largest batch",
        "40",
    ):
        assert word in printed
    facts = json.loads(path.read_text())
    assert facts["confirmed"] is True
    assert facts["plain_batch_size"] == 40
    assert format_bytes(facts["best"]["measured_bytes"]) in printed
    out = CliRunner().invoke(command, [*arguments, "--no-confirm", "--strategy", "sqrt:3", "--json"]).stdout
    facts = json.loads(out)
    assert (facts["best"]["case"], facts["confirmed"], facts["best"]["runs"]) == ("sqrt(3)", False, 0)


@pytest.mark.gate
def test_a_real_child_measures_what_is_predicted():
    """Larger tensors than those that the reported peak leaves out."""
    keras.utils.clear_session()  # names of layers as in a process of its own
    asked = worker.done(MaxBatchJob("conv", ("test_max_batch:conv", 128), 60_000_000, optimizer="sgd"))
    assert asked.plain.batch_size < asked.recomputed.batch_size
    case = Case(
        "conv", ("test_max_batch:conv", 128), "least", "graph", asked.recomputed.batch_size, plan=asked.recomputed.plan,
        steps=1, optimizer=asked.optimizer,
    )  # fmt: skip
    measured = compare.run(case)
    assert measured.status == "ok", measured.detail
    assert batch_limit.step_bytes(measured) == pytest.approx(asked.recomputed.needed_bytes, rel=0.3)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [None, "sqrt"])
def test_a_real_search_ends_confirmed(strategy):
    found = tfgc.max_batch("sample_cnn", "400MB", image_size=64, strategy=strategy)
    assert found.confirmed
    assert found.plain.confirmed
    assert found.best.measured_bytes <= 400_000_000
    assert found.batch_size > 2 * found.plain_batch_size
