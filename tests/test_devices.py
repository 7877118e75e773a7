"""Several devices and workers, by TensorFlow's own strategies: as plain training under the same strategy."""

import functools
import json
import os
import pathlib
import subprocess
import sys

import mirrored_worker
import pytest

ROOT = pathlib.Path(__file__).parent.parent


def run(*command):
    """Run a Python program in a separate process, on CPUs alone."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "-1"}
    command = [sys.executable, *command]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=400, check=False)


pytestmark = pytest.mark.gate
FAST = (
    "graph, recompute", "recompute, plain variable", "graph", "fit", "fit, planned at the first call", "synchronized",
    "recompute, synchronized", "naive",
)  # fmt: skip


@functools.cache
def trained(*names):
    """What one process that trains these cases reports: TensorFlow is started once."""
    done = run("tests/mirrored_worker.py", *names)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def found(name):
    return trained(*(FAST if name in FAST else (other for other in mirrored_worker.CASES if other not in FAST)))[name]


EQUAL = [
    pytest.param(name, marks=[] if name in FAST else pytest.mark.slow)
    for name in mirrored_worker.CASES
    if "synchronized" not in name and name != "naive"
]


@pytest.mark.parametrize("name", EQUAL)
def test_two_devices_train_as_plainly(name):
    case = found(name)
    assert case["warnings"] == []
    assert case["replays"] >= 2
    assert case["moved"] > 0.05
    tolerance = {"uncompiled": 0.0, "graph, float16": 5e-3}.get(name, 1e-5)
    assert max(case["weights"], case["states"], case["losses"]) <= tolerance, case


def test_the_comparison_sees_a_second_run_that_draws_other_numbers():
    assert found("naive")["weights"] > 1e-2


@pytest.mark.parametrize(("name", "are_parts"), [("synchronized", True), ("recompute, synchronized", False)])
def test_what_devices_compute_together_is_kept_with_a_warning(name, are_parts):
    """TensorFlow refuses to trace a sum over replicas inside of another function; a model's other layers run again."""
    case = found(name)
    assert max(case["weights"], case["states"], case["losses"]) <= 1e-5
    assert bool(case["replays"]) == are_parts
    assert case["warnings"]
    for message in case["warnings"]:
        assert "replicas of a tf.distribute.Strategy wait for one another in it" in message


@pytest.fixture(scope="module")
def workers():
    """The rows of both workers, started by one command."""
    done = run("scripts/two_workers.py", "--json")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("loop", ["tf.function", "eager"])
def test_two_worker_processes_train_as_plainly_in_less_memory(workers, loop):
    rows = [row for row in workers if row["loop"] == loop]
    assert [row["worker"] for row in rows] == [0, 1]
    for row in rows:
        plain, ours = row["peaks"]
        assert row["error"] is None
        assert row["difference"] == 0
        assert ours < plain
    # They saw different data, and have the same weights only if they summed their gradients.
    assert rows[0]["sum"] == rows[1]["sum"]


def test_fit_over_workers_is_as_plain_fit_or_keras_refuses_both(workers):
    """Keras 3.15 refuses plain `fit` over several workers; a later one may not."""
    rows = [row for row in workers if row["loop"] == "fit"]
    assert len(rows) == 2
    for row in rows:
        if row["error"] is None:
            assert row["difference"] == 0
        else:
            assert row["refused"]["plain"] in row["error"]
            assert row["refused"]["tfgc"] == row["refused"]["plain"]


def test_workers_that_take_too_long_are_stopped():
    done = run("scripts/two_workers.py", "--limit", "0")
    assert done.returncode == 1
    assert "have been stopped" in done.stderr


@pytest.mark.slow
def test_workers_that_end_apart_fail():
    done = run("scripts/two_workers.py", "--json", "--naive")
    assert done.returncode == 1
    assert min(row["difference"] for row in json.loads(done.stdout) if not row["error"]) > 1e-2
