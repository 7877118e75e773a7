"""scripts/bench: the list costs nothing, tables say what was measured, predicted and published, and one runs."""

import importlib
import json
import math
import pathlib
import subprocess
import sys

import keras
import pytest

BENCH = pathlib.Path(__file__).parent.parent / "scripts" / "bench"


@pytest.fixture
def module(monkeypatch):
    """What imports a module of scripts/bench."""
    monkeypatch.syspath_prepend(str(BENCH))
    yield importlib.import_module
    for name in ("tables", "runs", "networks"):
        sys.modules.pop(name, None)


def run(*arguments, folder=None):
    done = subprocess.run([sys.executable, BENCH, *arguments], capture_output=True, text=True, check=False, cwd=folder)
    return done.returncode, done.stdout, done.stderr


def test_the_list_says_what_each_table_takes_and_loads_no_framework(module):
    code, printed, said = run("list")
    assert (code, said) == (0, "")
    tables = module("tables").TABLES
    assert [line for line in printed.splitlines() if line in tables] == list(tables)
    told = " ".join(printed.split())
    assert told.count("Takes: ") == told.count("Packages besides tfgc: ") == len(tables)
    assert run("ogcc")[0] == run("ogc", "--networks", "resnet51", "--table")[0] == 2


def test_cells_are_shares_and_multiples_beside_published_ones(module):
    ogc = module("tables").TABLES["ogc"]
    (row,) = (row for row in ogc.rows() if row.network == "resnet50")
    assert row.batch == 64
    assert row.published == {"OGC": (pytest.approx(0.37), pytest.approx(1.31))}
    plain = {"share": 1.0, "times": 1.0, "bytes": 1000, "fixed": 100, "host": 0}
    plans = {name: plain | {"share": 0.4, "times": 1.25} for name in ("optimal", "published")}
    steps = {"plain-graph": (1000, 1.0), "optimal-graph": (350, 1.4), "plain-eager": (2000, 1.0)}
    measured = {name: {"status": "ok", "peak": peak, "seconds": s} for name, (peak, s) in steps.items()}
    measured["optimal-compiled"] = {"status": "oom", "peak": None, "seconds": None}
    predicted = {"plain": plain, **plans, "nested": {"error": "no"}}
    heads, _, cells, _, *held = ogc.lines({"resnet50": {"batch": 8, "predicted": predicted, "measured": measured}})
    found = dict(zip(heads.split(" | "), cells.split(" | ")))
    assert (found["OGC"], found["weights of the plain step"]) == ("37.0% x 1.31", "10%")
    assert (found["optimal-graph"], found["optimal-compiled"]) == ("35.0% x 1.40 (~ 40.0% x 1.25)", "oom")
    assert (found["published-graph"], found["nested-graph"]) == ("~ 40.0% x 1.25", "no plan")
    assert held[0] == "- optimal-graph: no more memory than OGC in 1 of 1, in no more time in 0."


@pytest.mark.gate
def test_a_network_is_predicted_and_printed_again(tmp_path):
    words = "resnet-depth", "--predict", "--scale", "0.03"
    code, printed, said = run(*words, "--networks", "resnet18", folder=tmp_path)
    assert code == 0, said
    assert "| resnet18, 1 | " in printed
    assert run(*words, "--table", folder=tmp_path)[1] == printed


@pytest.mark.slow
def test_a_network_is_measured(tmp_path):
    words = "resnet-depth", "--networks", "resnet18", "--scale", "0.03", "--steps", "1"
    code, printed, said = run(*words, folder=tmp_path)
    assert code == 0, said
    measured = json.loads((tmp_path / "bench-resnet-depth.json").read_text())["resnet18"]["measured"]
    assert {name: case["status"] for name, case in measured.items()} == dict.fromkeys(
        ("plain-eager", "plain-graph", "optimal-graph", "published-graph"), "ok"
    )
    assert "(~ " in printed


@pytest.mark.slow
def test_networks_have_the_published_numbers_of_parameters(module):
    networks = module("networks")
    for name, count in networks.PARAMETERS.items():
        with keras.StatelessScope(initialize_variables=False):  # drawing 600 million numbers takes long
            model = getattr(networks, name)()
        assert sum(math.prod(variable.shape) for variable in model.trainable_variables) == count, name
