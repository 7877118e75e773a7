"""Runs that a signal ends at any moment: what was finished is kept, files are whole, and nothing is left behind."""

import os
import random
import signal
import subprocess
import sys
import time

import psutil
import pytest

from tfgc._records import results_json

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)
# Python ends itself like that, with 1, where it is interrupted before it has started, and nothing of tfgc runs yet.
UNSTARTED = "Fatal Python error: init_import_site"


def started(*command, folder=None, **environment):
    """A process with a session to itself. What a shell starts in the background ignores interrupts, so it must not."""
    return subprocess.Popen(
        [sys.executable, *map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True, env={**os.environ, **environment}, cwd=folder,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip


def of_session(leader):
    """The processes of a session that still run."""
    found = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == leader and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (ProcessLookupError, PermissionError, psutil.NoSuchProcess):
            continue
    return found


def ended(process, number):
    """Send a signal; what the process printed, and what it said on standard error, once nothing of it runs."""
    process.send_signal(number)
    printed, said = process.communicate(timeout=30)
    until = time.monotonic() + 10
    while of_session(process.pid) and time.monotonic() < until:
        time.sleep(0.02)
    assert not of_session(process.pid), "a child is left"
    assert "Traceback" not in said or said.startswith(UNSTARTED), said[-2000:]
    return printed, said


def pieces(folder):
    """Files that were begun and not finished."""
    return [path.name for path in folder.iterdir() if path.name.startswith(".tfgc-")]


def await_write(folder, seconds):
    """Wait until a file is being written, or for so long."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and not pieces(folder):
        time.sleep(0.0002)


def finished(path):
    """The names of the cases in a results file, which is whole if it is there."""
    if not path.exists():
        return set()
    return {record.name for study in results_json.read(path).studies for record in study.records}


def moment(rng, process, folder):
    """Wait until a moment at random: in the start, at any time, or in the middle of a write.

    The first 50 ms, or more on a busy machine, are Python's own start, in which nothing of tfgc runs.
    """
    kind = rng.choice(("start", "any", "any", "write"))
    time.sleep(rng.uniform(0.05, 3) if kind == "start" else rng.uniform(0, 25))
    if kind == "write":
        await_write(folder, 25)
    return kind


@pytest.mark.gate
def test_an_interrupt_in_code_that_runs_from_a_string_ends_with_130(tmp_path):
    """Dataclasses do that while libraries are imported: Python then ends by the signal, though it was caught."""
    (tmp_path / "own.py").write_text("def build():\n    exec('import signal; signal.raise_signal(signal.SIGINT)')\n")
    process = started("-m", "tfgc", "explain", "own:build", "--batch-size", "2", folder=tmp_path)
    _, said = process.communicate(timeout=60)
    assert said.endswith("tfgc: interrupted\n")
    assert process.returncode == 130


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_commands_that_are_interrupted_lose_nothing(seed, tmp_path):
    """20 interruptions of one compare, or of two that write the same file; then a whole run, which cleans up."""
    rng, temporary = random.Random(seed), tmp_path / "tmp"
    temporary.mkdir()
    path = tmp_path / "r.json"
    compare = ("-m", "tfgc", "compare", "sample_cnn", "--image-size", "16", "--batch-size", "2", "--steps", "1",
               "--strategy", "sqrt", "--json", path)  # fmt: skip
    environment = {"TMPDIR": str(temporary), "TF_CPP_MIN_LOG_LEVEL": "2"}
    for _ in range(20):
        commands = rng.choice(((compare,), (compare, compare)))
        known = finished(path)
        running = [started(*command, **environment) for command in commands]
        kind = moment(rng, running[0], tmp_path)
        for process in running:
            number = rng.choice(SIGNALS)
            printed, said = ended(process, number)
            print(kind, commands[0][2], len(commands), number.name, process.returncode, pieces(tmp_path))
            allowed = {signal.SIGINT: (130,)}.get(number, (-number,))
            if printed:  # It was done, and Python had given the signal back to the system.
                allowed += (-number,)
            if said.startswith(UNSTARTED):
                allowed += (1,)
            assert process.returncode in (0, *allowed), said[-2000:]
        assert known <= finished(path)
    whole = started(*compare, **environment)
    whole.communicate(timeout=300)
    assert whole.returncode == 0
    assert not pieces(tmp_path)
    assert not list(temporary.iterdir())
