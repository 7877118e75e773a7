"""Plans and results that were changed at random: read as they are, or refused in one line, and nothing half done."""

import json
import pathlib
import random

import pytest
from click.testing import CliRunner
from damages import is_refused, mutated
from random_graphs import chain

from tfgc import Outlook, Plan, Segment, TfgcError
from tfgc._cli.commands import report
from tfgc._core import plan as plans
from tfgc._records import results_json

FILES = sorted((pathlib.Path(__file__).parent.parent / "scripts" / "results").glob("*.json"))
RESULTS = [path for path in FILES if '"tfgc-measurements"' in path.read_text()[:200]]
GRAPH = chain([3, 1, 4, 1, 5, 9, 2, 6], batch_size=2)


def nested():
    """A plan that splits a replay, with figures, as JSON data."""
    outlook = Outlook(100, "n3", "replay", 300, 80, "n5", 0.3, 0.2)
    sizes = {"stored_bytes": 10, "inside_bytes": 90, "input_bytes": 10, "work": 5.0}
    inner = Plan((Segment(("n0", "n1"), **sizes), Segment(("n2",), "keep", **sizes)), "inner", ())
    segments = (
        Segment(("n0", "n1", "n2"), inner=inner, **sizes),
        Segment(("n3", "n4"), **sizes),
        Segment(("n5", "n6", "n7"), "keep", obstacle="'n5': it draws numbers. Use a seed", **sizes),
    )
    return json.loads(Plan(segments, "budget", GRAPH.once(plans.describe), {"budget": "60%"}, 2, outlook).to_json())


def results(path):
    """Two studies of a committed results file without its long lists, as JSON data."""
    data = json.loads(path.read_text())
    data["studies" if "studies" in data else "records"][2:] = []
    for study in data.get("studies", [data]):
        if study.get("front"):
            study["front"]["points"][2:] = []
        for record in study["records"]:
            record["timeline"][3:] = []
            record.get("parts", [])[2:] = []
    return data


def read_plan(path):
    """What every command does with a plan's file before it runs the plan."""
    plan = Plan.load(path)
    plan.check(GRAPH)
    assert plan.explain()
    assert Plan.from_json(plan.to_json()).to_json() == plan.to_json()  # NaN is not equal to itself


def run(command, *arguments):
    return CliRunner().invoke(command, [str(a) for a in arguments], catch_exceptions=False)


def check_plans(count, folder, seed):
    rng, file, refused = random.Random(seed), folder / "plan.json", 0
    for _ in range(count):
        file.write_bytes(mutated(nested(), rng))
        refused += is_refused(read_plan, file)
    assert refused > 0.7 * count


def check_results(count, folder, seed, kinds=("md",)):
    rng, file, refused = random.Random(seed), folder / "results.json", 0
    for i in range(count):
        data, output = results(rng.choice(RESULTS)), folder / f"out.{kinds[i % len(kinds)]}"
        file.write_bytes(mutated(data, rng))
        if is_refused(run, report.command, file, "-o", output, "--json", folder / "out.json"):
            refused += 1
            assert [path.name for path in folder.iterdir()] == ["results.json"]
        else:
            assert output.stat().st_size > 500
            output.unlink()
            (folder / "out.json").unlink()
    assert refused > 0.5 * count


def test_damaged_plans_are_refused_in_one_line(tmp_path):
    check_plans(60, tmp_path, seed=1)


def test_damaged_results_are_refused_in_one_line(tmp_path):
    check_results(30, tmp_path, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 12))
def test_many_damaged_files_are_refused_in_one_line(seed, tmp_path):
    check_plans(100, tmp_path, seed)
    (tmp_path / "plan.json").unlink()
    check_results(100, tmp_path, seed, kinds=("md", "md", "html", "png"))


def lost(data, field):
    del data["segments"][0][field]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda data: lost(data, "mode"), "the plan.segments[0] has no field 'mode'"),
        (lambda data: data["segments"][1].update(mode="store"), "the plan.segments[1]: a segment's mode is keep or"),
        (lambda data: data.update(batch_size=-2), "the plan.batch_size must not be negative, got -2"),
        (lambda data: data.update(batch_size=2.0), "the plan.batch_size must be a valid integer, got 2.0"),
        (lambda data: data.update(link=0.0), "link=0.0: bytes per unit of work must be positive"),
        (lambda data: data.update(steps=3), "the plan has an unknown field 'steps'"),
        (lambda data: data["outlook"].update(overhead=float("nan")), "overhead must be a finite number, got nan"),
        (lambda data: data.update(version="3"), "version must be an integer >= 1, got '3'"),
    ],
)
def test_a_plan_that_is_refused_says_where_and_why(damage, words):
    data = nested()
    damage(data)
    with pytest.raises(TfgcError) as error:
        Plan.from_json(json.dumps(data))
    assert str(error.value).startswith("not a plan file, or a damaged one: ")
    assert words in str(error.value)


@pytest.mark.parametrize("read", [Plan.from_json, results_json.from_json])
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[" * 10_000 + "]" * 10_000, "nested more than 200 levels deep"),
        ("[" * 300 + "]" * 300, "nested more than 200 levels deep"),
        ('{"format": 1, "format": 2}', "'format' is given twice"),
        ('{"version": 1e999}', "its format is not"),
        (f'{{"format": {10**400}}}', "a number in it is too large"),
        (f'{{"format": {"9" * 5000}}}', "integer string conversion"),
    ],
)
def test_json_that_is_no_document_is_refused(read, text, words):
    with pytest.raises(TfgcError, match=r"^not a .* file, or a damaged one: ") as error:
        read(text)
    assert words in str(error.value)
    assert "\n" not in str(error.value)
