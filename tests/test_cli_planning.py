"""The commands that plan: what they print and write, and how they answer mistakes."""

import dataclasses
import json
import re
import subprocess
import sys

import keras
import matplotlib.figure
import numpy as np
import pytest
import tensorflow as tf
from click.testing import CliRunner
from equality import fresh, mostly, noise
from models import Subclassed, built
from PIL import Image

import tfgc
from tfgc import InfeasibleBudgetError, Plan, PlanMismatchError, TfgcError
from tfgc.__main__ import main
from tfgc._cli.group import cli
from tfgc._core import explanation
from tfgc._core import plan as plans
from tfgc._core.graph import Cost, Node, Ref, Spec
from tfgc._errors import OptionError
from tfgc._measure import case_choice, compare, predict_cases, worker
from tfgc._planning import ahead, budgets, free_memory, sweep
from tfgc._records import measurement, results_json
from tfgc._records.front import BudgetChoice, FrontPoint, FrontRecord
from tfgc._records.job import Case, PredictionJob
from tfgc._records.measurement import Measurement, Study
from tfgc._report import command_tables, fronts, plots
from tfgc._units import format_bytes
from tfgc._verify import verify

CHAIN = ["test_cli_planning:chain", "--batch-size", "8"]
OPEN = ["test_cli_planning:open_tokens", "--batch-size", "4"]


def chain(image_size=64):
    x = inputs = keras.Input((image_size, image_size, 3))
    for i in range(6):
        x = keras.layers.Conv2D(8, 3, padding="same", activation="relu", name=f"conv{i}")(x)
        x = keras.layers.BatchNormalization(name=f"norm{i}")(x)
    x = keras.layers.GlobalAveragePooling2D(name="pool")(x)
    return keras.Model(inputs, keras.layers.Dense(2, name="head")(x), name="chain")


def open_tokens():
    x = tokens = keras.Input((None,), dtype="int32", name="tokens")
    x = keras.layers.Embedding(20, 8)(x)
    for _ in range(3):
        x = keras.layers.Dense(64, activation="gelu")(x)
    return keras.Model(tokens, x)


def failing():
    raise RuntimeError("no luck\nat all")


def subclassed():
    class Own(keras.Model):
        pass

    return Own()


def command(*arguments):
    """Run a command; a mistake is raised."""
    result = CliRunner().invoke(cli, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    tfgc.plan(chain(), 8, strategy="sqrt", segments=4).save(path)
    return path


def test_plan_prints_a_summary_and_writes_the_plan(tmp_path):
    path = tmp_path / "plan.json"
    words = command("plan", *CHAIN, "--budget", "70%", "-o", path).output
    for word in ("budget", "segments", "overhead", str(path)):
        assert word in words
    plan = plans.Plan.load(path)
    assert plan == tfgc.plan(chain(), 8, budget="70%")
    budget, needed = plan.outlook.budget_bytes, plan.outlook.needed_bytes
    assert needed == tfgc.estimate(chain(), 8, plan).needed_bytes <= budget
    assert budget == int(0.7 * tfgc.estimate(chain(), 8).needed_bytes)
    said = f"budget {format_bytes(budget)}: needs {format_bytes(needed)}"
    assert re.findall(r"[\d.]+ [kM]?B\b", words) == re.findall(r"[\d.]+ [kM]?B\b", said)  # and no third figure
    assert said in words
    explained = command("explain", *CHAIN, "--plan", path).output
    assert said.capitalize()[:6] + said[6:] in explained
    assert str(tfgc.status(tfgc.enable(chain(), plan))).endswith(said)
    tfgc.enable(chain(), plan)


def test_plan_prints_the_figures_as_json(tmp_path):
    facts = json.loads(command("plan", *CHAIN, "--strategy", "sqrt:4", "--optimizer", "sgd", "--json").stdout)
    plan = tfgc.plan(chain(), 8, strategy="sqrt", segments=4)
    step = tfgc.estimate(chain(), 8, plan, optimizer="sgd")
    assert facts["options"] == {"segments": 4}
    assert (facts["segments"], facts["recomputed"], facts["nested"]) == (4, 3, False)
    assert facts["peak_bytes"] == plan.outlook.peak_bytes
    assert facts["cut_off"] == plan.outlook.cut_off
    assert facts["gap"] == pytest.approx(facts["peak_bytes"] / facts["floor_bytes"] - 1)
    assert (facts["needed_bytes"], facts["fixed_bytes"]) == (step.needed_bytes, step.fixed_bytes)
    assert facts["plain_needed_bytes"] == tfgc.estimate(chain(), 8, optimizer="sgd").needed_bytes


def test_options_reach_the_strategy():
    facts = json.loads(command("plan", *CHAIN, "--strategy", "uniform", "--option", "segments=3", "--json").stdout)
    assert facts["segments"] == 3
    by_colon = command("plan", *CHAIN, "--strategy", "uniform:5", "--json").stdout
    assert by_colon == command("plan", *CHAIN, "--strategy", "uniform", "--option", "segments=5", "--json").stdout


def test_explain_reads_a_plan_or_makes_one(plan_file):
    read = command("explain", *CHAIN, "--plan", plan_file).output
    made = command("explain", *CHAIN, "--strategy", "sqrt:4").output
    assert read == made == tfgc.plan(chain(), 8, strategy="sqrt", segments=4).explain() + "\n"
    larger = command("explain", "test_cli_planning:chain", "--batch-size", "16", "--plan", plan_file).output
    assert larger == tfgc.plan(chain(), 16, strategy="sqrt", segments=4).explain() + "\n"


def test_open_sizes_are_given_by_name(tmp_path):
    facts = json.loads(command("plan", *OPEN, "--input", "tokens=1024", "--json").stdout)
    plan = tfgc.plan(open_tokens(), 4, input_shapes={"tokens": (1024,)})
    assert facts["peak_bytes"] == plan.outlook.peak_bytes
    twice = json.loads(command("plan", *OPEN, "--input", "tokens=2048", "--json").stdout)
    assert twice["plain_bytes"] > 1.9 * facts["plain_bytes"]


def test_sweep_prints_the_front_and_what_budgets_buy(plan_file, tmp_path):
    path = tmp_path / "front.json"
    words = command(
        "sweep", *CHAIN, "--budgets", "70%,1KB", "--budget", "9MB", "--points", 4, "--plan", plan_file, "--json", path
    ).output
    front = json.loads(path.read_text())["studies"][0]["front"]
    peaks, overheads = ([p[key] for p in front["points"]] for key in ("peak_bytes", "overhead"))
    assert peaks == sorted(peaks)
    assert overheads == sorted(overheads, reverse=True)
    assert overheads[-1] == 0
    assert peaks[0] >= front["floor_bytes"]
    assert [p["name"] for p in front["others"]] == [str(plan_file)]
    share, refused, chosen = front["choices"]
    assert refused["point"] is None
    with pytest.raises(InfeasibleBudgetError) as error:
        tfgc.plan(chain(), 8, budget="1KB")
    assert refused["least_bytes"] == error.value.least
    assert f"The smallest budget that works is {error.value.least:,} bytes" in words
    for choice, budget in ((share, "70%"), (chosen, "9MB")):
        plan = tfgc.plan(chain(), 8, budget=budget)
        step = tfgc.estimate(chain(), 8, plan)
        assert choice["point"] in front["points"]
        for key in ("peak_bytes", "activation_bytes", "overhead"):
            assert choice["point"][key] == getattr(step, key)
        assert step.needed_bytes <= choice["budget_bytes"]
        assert f"bought by {budget}" in words


def test_sweep_prints_the_whole_front(tmp_path):
    path = tmp_path / "front.json"
    command("sweep", *CHAIN, "--points", 99, "--json", path)
    (study,) = results_json.read(path).studies
    points = [dataclasses.asdict(point) for point in study.front.points]
    assert [p["overhead"] for p in points] == pytest.approx([plan.outlook.overhead for plan in tfgc.pareto(chain(), 8)])


@pytest.mark.gate
def test_sweep_draws_a_picture(tmp_path):
    path = tmp_path / "front.png"
    command("sweep", *CHAIN, "--budget", "60%", "--points", 5, "--plot", path)
    with Image.open(path) as image:
        assert image.format == "PNG"
        assert image.size[0] > 800
        pixels = np.asarray(image.convert("RGB")).reshape(-1, 3)
    # White paper with lines of several colours on it.
    assert 0.5 < (pixels == 255).all(axis=1).mean() < 0.99
    assert len(np.unique(pixels, axis=0)) > 100


POINTS = (
    FrontPoint("least", 300, 320, 200, 0.75, 0.5, 9, True, 330),
    FrontPoint("", 500, 520, 400, 0.5, 0.25, 5, False, 530),
    FrontPoint("plain", 900, 920, 800, 0.0, 0.0, 1, False),
)
FRONT = FrontRecord(
    "net", 8, "flop", 100, 250, "conv", POINTS, (FrontPoint("optimal", 310, 330, 210, 0.74, 0.6, 4, False),),
    (BudgetChoice("600", 600, POINTS[1]), BudgetChoice("60%", 540, POINTS[1]), BudgetChoice("1 B", 1, None, 320)),
)  # fmt: skip


def test_table_of_a_hand_made_front(capsys):
    assert fronts.rows(FRONT) == [
        ["optimal", "330 B", "35.9 %", "60.0 %", "4", ""],
        ["least", "330 B", "35.9 %", "50.0 %", "9", "yes"],
        ["bought by 600, 60%", "530 B", "57.6 %", "25.0 %", "5", ""],
        ["plain", "920 B", "100.0 %", "0.0 %", "1", ""],
    ]
    command_tables.print_table(fronts.budgets(FRONT))
    words = capsys.readouterr().out
    assert words.count("25.0 %") == 2
    assert words.count("infeasible") == 1
    assert "The smallest budget that works is 320 bytes" in words


def test_front_is_drawn_with_axes_in_units_and_names():
    figure = matplotlib.figure.Figure()
    plots.front(measurement.Study("net", 8, front=FRONT)).draw(figure)
    (axes,) = figure.axes
    assert "(bytes)" in axes.get_xlabel()
    assert "flops" in axes.get_ylabel()
    assert {text.get_text() for text in axes.texts} == {"least", "plain", "optimal"}
    labels = axes.get_legend_handles_labels()[1]
    assert labels[1:] == ["budget 600", "budget 60%", "budget 1 B: infeasible", "floor: conv"]


GIVEN = ("model", "batch_size", "budget", "strategy", "optimizer", "mode", "loss")
MISTAKES = [
    (["plan", "test_cli_planning:chai", "--batch-size", "8"], "cannot import the builder"),
    (["plan", "test_cli_planning:failing", "--batch-size", "8"], "RuntimeError: no luck"),
    (["plan", "test_cli_planning:subclassed", "--batch-size", "8"], "Own"),
    (["plan", "resnet50", "--batch-size", "8", "--image-size", "8"], "at least 32x32"),
    (["plan", *CHAIN, "--budget=-3"], "budget='-3'"),
    (["plan", *CHAIN, "--budget", "2kB"], "the smallest budget that works is"),
    (["plan", *CHAIN, "--strategy", "sqrt:x"], "number of segments"),
    (["plan", *CHAIN, "--strategy", "budget"], "needs budget="),
    (["plan", *OPEN], "--input tokens=128"),
    (["plan", *OPEN, "--input", "token=8", "--input", "tokens=8"], "did you mean 'tokens'"),
    (["plan", *OPEN, "--input", "tokens=8,8"], "does not fit input 'tokens'"),
    (["plan", *OPEN, "--input", "tokens=0"], "--input 'tokens=0'"),
    (["sweep", *CHAIN, "--plan", "none.json"], "cannot read the plan 'none.json'"),
    (["sweep", *CHAIN, "--budgets", ","], "name budgets"),
    (["sweep", *CHAIN, "--budgets", "1GB,no"], "budget='no'"),
    (["sweep", *CHAIN, "--plot", "/no/such.png"], "cannot write '/no/such.png'"),
    (["compare", *CHAIN, "--plan", "none.json"], "cannot read the plan 'none.json'"),
    (["compare", *CHAIN, "--json", "/no/such/x.json"], "cannot write '/no/such/x.json'"),
    (["compare", *CHAIN, "--strategy", ","], "at least one strategy"),
    (["compare", *CHAIN, "--strategy", "sqrt", "--budget", "1GB"], "these do: budget, hybrid, ilp"),
    (["compare", *OPEN, "--input", "tokens="], "--input 'tokens='"),
    (["plan", *OPEN, "--input", "tokens=²"], "--input 'tokens=²'"),
    (["plan", *OPEN, "--input", f"tokens={'9' * 5000}"], "--input 'tokens=999"),
    (["plan", CHAIN[0], "--batch-size", f"{10**400}"], "batch_size: must be an integer >= 1 and < 2**63"),
    (["plan", CHAIN[0], "--batch-size", f"{10**18}"], "cannot be called on a batch of shapes"),
    (["compare", CHAIN[0], "--batch-size", f"{10**400}"], "batch_size: must be an integer >= 1 and < 2**63"),
    (["plan", *CHAIN, "--strategy", "sqrt:²"], "number of segments"),
    *((["plan", *CHAIN, "--option", f"{name}=3"], f"no option '{name}': tfgc.plan takes it beside") for name in GIVEN),
    (["max-batch", CHAIN[0], "--budget", "1GB", "--option", "budget=3"], "option 'budget': tfgc.plan takes it beside"),
    (["max-batch", CHAIN[0], "--budget", "1GB", "--option", "build=3"], "'budget' takes no option 'build'"),
    (["plan", ":", "--batch-size", "8"], "cannot import the builder ':'"),
    (["plan", ".a:b", "--batch-size", "8"], "cannot import the builder '.a:b'"),
    (["plan", "sys:exit", "--batch-size", "8"], "'sys:exit' cannot be built: SystemExit"),
    (["plan", "os:getcwd", "--batch-size", "8"], "'os:getcwd' must return a keras.Model, it returned '/"),
    (["plan", "big_cnn(1 2)", "--batch-size", "8"], "'big_cnn(1 2)': arguments must be integers"),
    (["plan", *CHAIN, "--example", ".a:b"], "cannot import --example '.a:b'"),
    (["plan", *CHAIN, "--example", "sys:exit"], "--example 'sys:exit' cannot be called: SystemExit"),
]


@pytest.mark.parametrize(
    ("arguments", "words"), MISTAKES, ids=lambda x: " ".join(x)[:99] if isinstance(x, list) else ""
)
def test_mistakes_typed_on_purpose(arguments, words):
    with pytest.raises(TfgcError) as error:
        CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["explain", "sweep", pytest.param("compare", marks=pytest.mark.gate)])
def test_a_plan_of_another_model_is_refused_before_any_work(name, plan_file):
    with pytest.raises(PlanMismatchError, match="was made for another model"):
        CliRunner().invoke(cli, [name, *OPEN, "--input", "tokens=8", "--plan", str(plan_file)], catch_exceptions=False)


def test_give_a_plan_or_options_to_make_one(plan_file):
    for flag in (["--budget", "1GB"], ["--strategy", "sqrt"], ["--option", "segments=3"]):
        with pytest.raises(OptionError, match=f"--plan, or {flag[0]}"):
            CliRunner().invoke(cli, ["explain", *CHAIN, "--plan", str(plan_file), *flag], catch_exceptions=False)


@pytest.mark.gate
def test_the_command_ends_with_one_line_and_code_1():
    done = subprocess.run(
        [sys.executable, "-m", "tfgc", "plan", "sample_cnn", "--batch-size", "2", "--budget", "1MB"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stdout == ""
    # TensorFlow itself may complain before, as one built for GPUs does on a machine without.
    assert done.stderr.splitlines()[-1].startswith("tfgc: no plan fits in 1,000,000 bytes")
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_compare_measures_a_plan_beside_the_plain_step(plan_file):
    results = tfgc.compare("test_cli_planning:chain", 8, plans=[plan_file], modes=["graph"], steps=1)
    assert [r.name for r in results] == ["plain-eager", "plain-graph", "plan.json-graph"]
    assert [r.status for r in results] == ["ok"] * 3
    assert results[-1].detail == "4 segments"


def test_a_comparison_in_which_all_cases_ran_out_of_memory_is_an_error_without_a_plot(monkeypatch, tmp_path):
    out_of_memory = tuple(Measurement("chain", "plain", mode, 8, "oom", "killed") for mode in ("eager", "graph"))
    monkeypatch.setattr(compare, "study", lambda cases, **_: Study("chain", 8, out_of_memory))
    path = tmp_path / "p.png"
    done = CliRunner().invoke(cli, ["compare", *CHAIN, "--plot", str(path)])
    assert (done.exit_code, path.exists()) == (1, False)
    assert str(done.exception).startswith("2 of 2 cases of chain did not finish; plain-eager: oom")
    assert f"No plot was written to {str(path)!r}: no case finished." in done.stderr


def test_what_compare_measures_by_default(plan_file):
    def names(**chosen):
        return [case.case for case in case_choice.plan_cases(chain, 8, modes=["graph"], **chosen)[2:]]

    assert names() == ["sqrt"]
    assert names(plans=str(plan_file)) == ["plan.json"]
    plan = plans.Plan.load(plan_file)
    assert names(plans=[plan_file, plan, plan]) == ["plan.json", "plan sqrt", "plan sqrt #2"]
    assert names(budget="60%") == ["budget(60%)"]
    assert names(budget="60%", wanted=["sqrt:3", "budget"], plans=[plan_file]) == [
        "sqrt(3)", "budget(60%)", "plan.json",
    ]  # fmt: skip
    with pytest.raises(OptionError, match="neither a"):
        names(plans=[3])


def test_two_functions_of_one_name_are_two_plans(plan_file, tmp_path):
    def pieces(count):
        return lambda graph: plans.Plan.from_cuts(graph, range(count, len(graph), count), strategy="pieces")

    named = [tmp_path / name for name in ("plain", "sqrt")]
    for path in named:
        path.write_text(plan_file.read_text())
    wanted = [pieces(2), pieces(4), "sqrt"]
    cases = case_choice.plan_cases(chain, 4, wanted, modes=["graph"], plans=named)
    assert [case.case for case in cases[2:]] == ["<lambda>", "<lambda> #2", "sqrt", "plain #2", "sqrt #2"]
    found = worker.done(PredictionJob(tuple(cases)))
    made = [plans.Plan.from_json(found.of(case).plan) for case in cases[2:4]]
    assert len(made[0].segments) > len(made[1].segments) > 1


def test_the_child_plans_for_its_batch_and_input_sizes():
    shapes = {"tokens": (1024,)}
    cases = case_choice.plan_cases(open_tokens, 4, steps=1, budget="80%", input_shapes=shapes)
    keras.utils.clear_session()  # names of layers as in a process of its own
    found = worker.done(PredictionJob(tuple(cases)))
    keras.utils.clear_session()
    plan = tfgc.plan(open_tokens(), 4, budget="80%", input_shapes=shapes, optimizer=keras.optimizers.SGD(), loss="mse")
    assert len(plan.segments) > 1
    assert [s.nodes for s in plans.Plan.from_json(found.cases["budget(80%)-graph"].plan).segments] == [
        s.nodes for s in plan.segments
    ]
    assert len(found.cases["budget(80%)-compiled"].parts) == len(plan.segments)
    assert {name for name, case in found.cases.items() if case.predicted} == {
        "plain-graph",
        "budget(80%)-graph",
    }
    with pytest.raises(OptionError, match="--input tokens="):
        worker.done(case_choice.plan_cases(open_tokens, 4, steps=1)[0])


def test_the_child_answers_why_a_plan_does_not_fit(plan_file):
    fitting, other = (
        PredictionJob(tuple(case_choice.plan_cases(build, 4, plans=[plan_file], input_shapes=shapes)))
        for build, shapes in ((chain, None), (open_tokens, {"tokens": (8,)}))
    )
    assert worker.done(fitting).cases["plan.json-graph"].parts
    with pytest.raises(PlanMismatchError, match=r"plan\.json: .*made for another model"):
        worker.done(other)


def test_what_cannot_be_planned_is_tried_once_for_all_modes(monkeypatch):
    asked, chosen = [], ahead.chosen
    monkeypatch.setattr(ahead, "chosen", lambda plans, request: asked.append(request) or chosen(plans, request))
    cases = case_choice.plan_cases(chain, 64, ["budget"], budget=1000)
    found = worker.done(PredictionJob(tuple(cases), front=True))
    assert [request.budget for request in asked] == [1000]
    assert [name for name, case in found.cases.items() if "no plan fits in 1,000 bytes" in case.error] == [
        "budget(1000)-compiled", "budget(1000)-graph",
    ]  # fmt: skip
    assert found.front.points


def hand_made(outlook=True):
    """Two segments: one recomputed with a nested replay, one whose inputs are larger than its inside."""
    big, small = Spec((None, 100)), Spec((None, 10))
    spec = {"a": big, "b": big, "c": small, "d": small}
    nodes, last = [], Ref("x")
    for name, output in spec.items():
        nodes.append(Node(name, (last,), (output,)))
        last = Ref(name)
    cost = Cost(
        (Ref("c"),),
        forward_bytes=40,
        backward_bytes=400,
        differentiable_inputs=(Ref("b"),),
    )
    nodes[2] = Node("c", nodes[2].inputs, (small,), cost=cost)
    graph = tfgc.Graph(tuple(nodes), {"x": small}, (last,), 1)
    pieces = [(0, 2, [(0, 1, "recompute"), (1, 2, "keep")]), (2, 3, "recompute"), (3, 4, "keep")]
    plan = Plan.from_pieces(graph, pieces, strategy="mine", options={"n": 3})
    return tfgc.strategies.apply(lambda graph: plan, graph) if outlook else plan


def test_explain_says_what_is_stored_and_why():
    lines = explanation.explain(hand_made()).splitlines()
    assert lines[0] == "Plan by 'mine' (n=3) for a batch of 1: 3 segments, 2 of them recomputed."
    table = lines[lines.index(next(line for line in lines if "nodes (how many)" in line)) + 1 :]
    assert " ".join(" ".join(table).split()) == (
        "0 recompute 0 B 800 B 200 flop a ... b (2) "
        "0.0 recompute 0 B 400 B 100 flop a (1) "
        "0.1 keep 800 B b (1): its backward pass follows immediately <- the peak is here "
        "1 recompute 400 B 40 B 0 flop c (1): no help, its inputs (400 B) are no smaller than its inside "
        "2 keep 80 B d (1): its backward pass follows immediately"
    )
    assert [line[:3] for line in table if not line.startswith("    ")] == ["0  ", "  0", "  0", "1  ", "2  "]


def test_explain_without_sizes_names_the_segments():
    words = explanation.explain(hand_made(outlook=False))
    assert "Sizes are unknown" in words
    assert "a ... b (2)" in words
    assert "stores" not in words


@pytest.mark.gate
@pytest.mark.parametrize("network", ["resnet50", "transformer_encoder"])
def test_explain_fits_the_page(network):
    model = tfgc.zoo.build(network)
    for plan in (tfgc.plan(model, 4), tfgc.plan(model, 4, strategy="sqrt", segments=40)):
        words = plan.explain()
        assert len(words.splitlines()) < 3 * len(plan.segments) + 20


@pytest.mark.gate
def test_verify_proves_it_and_takes_a_plan_file(tmp_path):
    made = tmp_path / "plan.json"
    command("plan", *CHAIN, "--image-size", "8", "--option", "segments=3", "--strategy", "uniform", "-o", made)
    printed = command("verify", *CHAIN, "--image-size", "8", "--plan", made, "--mode", "graph", "--steps", "2").output
    assert printed.startswith("EQUAL: 2 steps in each of graph; in each ")
    assert "worst relative difference" in printed
    found = json.loads(
        command("verify", *CHAIN, "--image-size", "8", "--mode", "eager", "--steps", "1", "--json").output
    )
    assert found["equal"] is True
    assert found["compared"]["gradient"] == 6 * 4 + 2


def restless(image_size=None):
    draws = np.random.default_rng(0)

    class Restless(keras.layers.Layer):
        def call(self, x):
            return x * draws.uniform()

    model = [keras.layers.Dense(8), Restless(name="restless"), keras.layers.Dense(8), keras.layers.Dense(2)]
    return keras.Sequential([keras.Input((8,)), *model])


@pytest.mark.gate
def test_verify_fails_with_an_exit_code_where_training_differs(monkeypatch, capsys):
    arguments = ["verify", "test_cli_planning:restless", "--batch-size", "4", "--mode", "eager"]
    monkeypatch.setattr(sys, "argv", ["tfgc", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    printed = capsys.readouterr()
    assert ended.value.code == 1
    assert printed.out.startswith("NOT EQUAL")
    assert "not deterministic: the gradient" in printed.out
    assert "tfgc: test_cli_planning:restless trains differently by this plan" in printed.err


def drawing(image_size=None):
    class Drawing(keras.layers.Layer):
        def call(self, x):
            return x + tf.random.normal((8,))

    layers = [keras.layers.Dense(8), Drawing(), keras.layers.Dense(8), keras.layers.Dense(2)]
    return keras.Sequential([keras.Input((8,)), *layers])


def for_xla(image_size=None):
    model = keras.Sequential([keras.Input((8,)), *(keras.layers.Dense(8) for _ in range(4))])
    model.compile("sgd", "mse", jit_compile=True)
    return model


def test_verify_without_a_mode_runs_those_that_suit_the_model():
    made = command("verify", "test_cli_planning:for_xla", "--batch-size", "4", "--steps", "1")
    assert made.stdout.startswith("EQUAL: 1 steps in each of eager, compiled, graph, xla;")
    refused = CliRunner().invoke(cli, ["verify", "test_cli_planning:drawing", "--batch-size", "4"])
    assert isinstance(refused.exception, tfgc.OptionError)
    assert "draws by tf.random" in str(refused.exception)


def test_verify_that_runs_out_of_memory_says_so(monkeypatch):
    def full(*args, **more):
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor with shape[8,8]\nand more")

    monkeypatch.setattr(verify, "verify", full)
    with pytest.raises(TfgcError, match=r"chain ran out of memory at --batch-size 8: .* a smaller batch"):
        command("verify", *CHAIN, "--layers", "conv1", "--mode", "graph")


@pytest.mark.gate
def test_verify_of_chosen_layers():
    verified = command(
        "verify", *CHAIN, "--image-size", "8", "--layers", "conv1,norm3", "--mode", "graph", "--steps", "1"
    )
    assert verified.output.startswith("EQUAL: 1 step")
    with pytest.raises(OptionError, match="no layer 'conv9'; did you mean"):
        command("verify", *CHAIN, "--image-size", "8", "--layers", "conv9")
    with pytest.raises(OptionError, match="not both"):
        command("verify", *CHAIN, "--layers", "conv1", "--budget", "1GB")


def test_sweep_takes_an_example_for_a_functional_model():
    tokens = keras.Input((None,), dtype="int32")
    hidden = keras.layers.Dense(64, "gelu")(keras.layers.Embedding(20, 32)(tokens))
    text = keras.Model(tokens, keras.layers.Dense(2)(keras.layers.Dense(64, "gelu")(hidden)))
    example = np.ones((4, 16), "int32")
    text.compile("sgd", "mse")
    plan = tfgc.plan(text, example=example)
    assert plan.operations
    front = sweep.sweep(text, "text", None, example=example, plans=[("given", plan)])
    assert front.batch_size == 4
    assert "given" in [point.name for point in front.others]
    assert front.points[0].peak_bytes < front.points[-1].peak_bytes


@pytest.mark.parametrize("kind", mostly("functional", modes=["functional", "subclassed"]))
def test_sweep_means_the_same_by_auto_as_plan_does(monkeypatch, kind):
    """What weights take is not free, but part of the step."""
    monkeypatch.setattr(free_memory, "free_bytes", lambda: 10**6)
    model = fresh(chain) if kind == "functional" else fresh(built(Subclassed, noise(16, 8)))
    example = None if kind == "functional" else noise(16, 8)
    front = sweep.sweep(model, "net", 2 if example is None else None, example=example, budgets=["auto"])
    assert front.choices[0].budget_bytes == budgets.budget_bytes("auto", None, budgets.resident_bytes(model)) > 900_000


@pytest.mark.parametrize("kind", mostly("subclassed", modes=["functional", "subclassed"]))
def test_what_a_plan_of_the_sweep_needs_is_a_budget_that_buys_it(kind):
    model = fresh(chain) if kind == "functional" else fresh(built(Subclassed, noise(16, 8)))
    of = {"batch_size": 2} if kind == "functional" else {"batch_size": None, "example": noise(16, 8)}
    front = sweep.sweep(model, "net", points=3, **of)
    for point in front.points:  # with room for what an allocator adds
        plan = tfgc.plan(model, budget=int(1.3 * point.needed_bytes), **of)
        assert plan.outlook.needed_bytes <= 1.3 * point.needed_bytes


@pytest.mark.parametrize(
    ("given", "planned"),
    [((), ["sqrt-compiled", "sqrt-graph"]), (("--mode", "xla"), ["plain-xla", "sqrt-xla"])],
)
def test_compare_runs_planned_steps_in_the_modes_that_are_named(monkeypatch, given, planned):
    asked = []

    def study(cases, **_):
        asked.extend(case.name for case in cases)
        raise TfgcError("enough")

    monkeypatch.setattr(compare, "study", study)
    assert CliRunner().invoke(cli, ["compare", *CHAIN, *given]).exit_code
    assert asked == ["plain-eager", "plain-graph", *planned]


def test_compare_predicts_its_step_of_sgd_whatever_the_model_is_compiled_with():
    cases = [Case("net", ("net", None), name, "graph", 2, strategy=name) for name in ("keep_all", "sqrt")]

    def predicted(optimizer):
        model = fresh(chain)
        model.compile(optimizer, "mse")
        found = predict_cases.predict_cases(model, PredictionJob(tuple(cases)))
        return [found.of(case).predicted for case in cases]

    of_sgd = predicted("sgd")
    assert predicted("lion") == of_sgd
    assert predicted(keras.optimizers.SGD(global_clipnorm=1.0)) == of_sgd


def test_compare_means_the_same_by_auto_as_plan_does(monkeypatch):
    model, made, chosen = fresh(chain), [], ahead.chosen
    monkeypatch.setattr(free_memory, "free_bytes", lambda: 10**7)
    monkeypatch.setattr(ahead, "chosen", lambda *given: made.append(chosen(*given)) or made[-1])
    options = {"budget": "auto"}
    case = Case("net", ("net", None), "budget", "graph", 2, strategy="budget", options=options)
    predict_cases.predict_cases(model, PredictionJob((case,)))
    made.append(tfgc.plan(model, 2, budget="auto"))
    expected = 9_000_000 + budgets.resident_bytes(model)  # slots are not there yet, and have to fit as well
    assert [plan.outlook.budget_bytes for plan in made] == 3 * [expected]


@pytest.mark.parametrize("kind", ["functional", "subclassed"])
def test_sweep_refuses_a_wrong_budget_before_it_plans(monkeypatch, kind):
    model = fresh(chain) if kind == "functional" else fresh(built(Subclassed, noise(16, 8)))
    example = None if kind == "functional" else noise(16, 8)
    monkeypatch.setattr(ahead, "plans_for", lambda *_, **__: pytest.fail("planned first"))
    with pytest.raises(OptionError, match="budget='2BG'"):
        sweep.sweep(model, "net", 2 if example is None else None, example=example, budgets=["1GB", "2BG"])
