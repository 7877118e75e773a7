"""Plans and results that earlier versions saved still load, and do what they did."""

import json
import pathlib

import keras
import pytest
from equality import assert_equal, fresh, noise, train

import tfgc
from tfgc._framework import graph_optimizer
from tfgc._records import results_json

ROOT = pathlib.Path(__file__).parent.parent
FILES = pathlib.Path(__file__).parent / "files"
PLAN = FILES / "plan-2026-11-20.json"
SAVED = sorted([*(ROOT / "scripts" / "results").glob("*.json"), *FILES.glob("results-*.json")])
RESULTS = [path for path in SAVED if json.loads(path.read_text()).get("format") == "tfgc-measurements"]


def block(x, number):
    y = keras.layers.Conv2D(4, 3, padding="same", name=f"conv{number}")(x)
    y = keras.layers.BatchNormalization(name=f"norm{number}")(y)
    y = keras.layers.Dropout(0.1, name=f"drop{number}")(keras.layers.ReLU(name=f"relu{number}")(y))
    return keras.layers.Add(name=f"add{number}")([x, y])


def planned():
    """The model that the plan was made for at commit 3a8999f, with `budget="60%"` and a batch of 4."""
    inputs = x = keras.Input((8, 8, 4), name="image")
    for number in range(6):
        x = block(x, number)
    return keras.Model(inputs, keras.layers.Dense(2, name="out")(keras.layers.Flatten(name="flat")(x)), name="old")


@pytest.mark.gate
def test_a_plan_of_the_first_version_trains_its_model_as_the_plain_one():
    plan = tfgc.Plan.from_json(PLAN.read_text())
    assert [segment.mode for segment in plan.segments] == ["keep", "recompute"] * 3 + ["keep"]
    x, y = noise(4, 8, 8, 4), [noise(4, 2, seed=2)]
    with graph_optimizer.off():
        plain = train(fresh(planned), x, y, graph=True)
        model = fresh(planned)
        tfgc.enable(model, plan)
        assert_equal(plain, train(model, x, y, graph=True), exact=True)


def test_plans_whose_replays_took_over_small_results_are_read():
    """In version 3 any segment that was recomputed as a whole could say so."""
    data = json.loads(PLAN.read_text())
    data["segments"][1].update(result_bytes=128, spared_work=1e6)
    plan = tfgc.Plan.from_json(json.dumps({**data, "version": 3}))
    assert [s.nodes for s in plan.segments] == [s.nodes for s in tfgc.Plan.from_json(PLAN.read_text()).segments]
    assert tfgc.Plan.from_json(plan.to_json()) == plan


def test_a_plan_with_slices_of_segments_is_refused():
    """Up to version 7 a segment could run in slices of the batch, and each said in how many."""
    text = PLAN.read_text()
    assert tfgc.Plan.from_json(text)
    with pytest.raises(tfgc.TfgcError, match=r"tfgc\.recompute\(fn, slices=\.\.\.\)"):
        tfgc.Plan.from_json(text.replace('"chunks": 1', '"chunks": 8'))


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_committed_results_load(path):
    assert results_json.read(path).studies


def test_results_of_benchmark_suites_are_refused_and_their_fields_left_out():
    """Up to version 5 every file had those fields."""
    data = json.loads((FILES / "results-version-3.json").read_text())
    data["version"] = 5
    for record in data["studies"][0]["records"]:
        record["time_ratio"] = None
    read = results_json.from_json(json.dumps(data))
    assert results_json.from_json(results_json.to_json(read)) == read
    with pytest.raises(tfgc.TfgcError, match="it holds results of a benchmark suite, which tfgc no longer has"):
        results_json.from_json(json.dumps({**data, "suite": "ogc"}))
