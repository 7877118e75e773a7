"""Runs that a signal ends at any moment: what was finished is kept, files are whole, and nothing is left behind."""

import os
import random
import signal
import subprocess
import sys
import time

import psutil
import pytest

from tfgc._measure.results_file import FINISHED, ResultsFile
from tfgc._records import results_json

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)
# Python ends itself like that, with 1, where it is interrupted before it has started, and nothing of tfgc runs yet.
UNSTARTED = "Fatal Python error: init_import_site"
# Puts records into a results file, as `tfgc bench` does, and names each once it is there.
WRITER = """
import sys
from tfgc._measure.results_file import ResultsFile
from tfgc._records.measurement import Measurement, Study

who, path = sys.argv[1:]
for i in range(10_000):
    records = [Measurement("vgg16", f"{who} {i - k}", "graph", 2, peak_bytes=1) for k in range(min(i + 1, 3))]
    timeline = tuple((float(k), k) for k in range(300))
    records.append(Measurement("vgg16", f"{who} last", "graph", 2, timeline=timeline))
    ResultsFile("segments", path).put(Study("vgg16", 2, tuple(records)))
    print(records[0].case, flush=True)
"""


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


@pytest.mark.parametrize(
    ("rounds", "seed"), [pytest.param(10, 0, marks=pytest.mark.gate), pytest.param(140, 1, marks=pytest.mark.slow)]
)
def test_two_writers_that_are_killed_lose_nothing(rounds, seed, tmp_path):
    """While one of them writes, a signal ends the one or the other, and then the one that is left."""
    path, rng, begun, code = tmp_path / "r.json", random.Random(seed), 0, tmp_path / "writer.py"
    code.write_text(WRITER)
    known = set()
    for i in range(rounds):
        writers = [started(code, f"{i}{who}", path) for who in "ab"]
        time.sleep(rng.uniform(0.15, 0.6))
        printed = []
        for writer in rng.sample(writers, 2):
            await_write(tmp_path, 0.5)
            writer.send_signal(rng.choice(SIGNALS))
            printed += writer.communicate(timeout=30)[0].splitlines(keepends=True)
        begun += bool(pieces(tmp_path))
        known |= {line.strip() for line in printed if line.endswith("\n")}
        (study,) = results_json.read(path).studies if path.exists() else [None]
        assert known <= ({record.case for record in study.records} if study else set())
        if len(known) > 300:  # larger files would only make each write longer
            path.unlink()
            known.clear()
    print(f"{begun} of {rounds} rounds ended in a write")
    assert begun
    if path.exists():
        ResultsFile("segments", path).put(results_json.read(path).studies[0])
        assert not pieces(tmp_path)


def finished(path):
    """The records of a results file that a run need not repeat."""
    if not path.exists():
        return set()
    records = [record for study in results_json.read(path).studies for record in study.records]
    return {(record.name, record.peak_bytes) for record in records if record.status in FINISHED}


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
    """20 interruptions of compare, bench, and two benches at one results file; then a whole run, which cleans up."""
    rng, temporary = random.Random(seed), tmp_path / "tmp"
    temporary.mkdir()
    path, compared = tmp_path / "r.json", tmp_path / "c.json"
    bench = ("-m", "tfgc", "bench", "segments", "sample_cnn", "--steps", "1", "--scale", "0.05", "-o", path)
    compare = ("-m", "tfgc", "compare", "sample_cnn", "--image-size", "16", "--batch-size", "2", "--steps", "1",
               "--strategy", "sqrt", "--json", compared)  # fmt: skip
    environment = {"TMPDIR": str(temporary), "TF_CPP_MIN_LOG_LEVEL": "2"}
    for _ in range(20):
        commands = rng.choice(((bench,), (compare,), (bench, bench)))
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
        finished(compared)
        if len(finished(path)) == 6:
            path.unlink()
    whole = started(*compare, **environment)
    whole.communicate(timeout=300)
    assert whole.returncode == 0
    assert not pieces(tmp_path)
    assert not list(temporary.iterdir())
