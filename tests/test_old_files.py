"""Results that earlier versions saved still load, and plans of layers are refused."""

import json
import pathlib

import pytest

import tfgc
from tfgc._records import results_json

ROOT = pathlib.Path(__file__).parent.parent
FILES = pathlib.Path(__file__).parent / "files"
SAVED = sorted([*(ROOT / "scripts" / "results").glob("*.json"), *FILES.glob("results-*.json")])
RESULTS = [path for path in SAVED if json.loads(path.read_text()).get("format") == "tfgc-measurements"]


def test_a_plan_of_layers_is_refused():
    text = json.dumps({"format": "tfgc-plan", "version": 7, "segments": []})
    with pytest.raises(tfgc.TfgcError, match=r"a plan of an earlier version of tfgc: make it again with tfgc\.plan"):
        tfgc.Plan.from_json(text)


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
