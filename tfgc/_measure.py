"""Measure ways to train a network: one child process a case.

The peak is the device allocator's own, since a sampler misses what happens
inside one call; the process's resident set, which people see in their
monitor, is sampled beside it from outside with memory_profiler. The counter is
exact, the order in which branches run is not: each case counts several steps.
"""

import contextlib
import dataclasses
import math
import os
import pickle
import re
import signal
import subprocess
import sys
import tempfile

import cloudpickle
import memory_profiler

from tfgc import strategies as known_strategies
from tfgc._errors import OptionError, TfgcError, whole
from tfgc._results import Measurement

BASELINES = (("plain", "eager"), ("plain", "graph"))
_SAMPLE_SECONDS = 0.1


@dataclasses.dataclass(frozen=True)
class Case:
    """What one child process is told to measure."""

    network: str
    build: object
    case: str
    mode: str
    batch_size: int
    strategy: object = None
    options: dict = dataclasses.field(default_factory=dict)
    steps: int = 5
    memory_limit: int | None = None


def compare(
    build, batch_size, strategies=("sqrt",), *, image_size=None, steps=5, modes=("eager", "graph"),
    memory_limit=None, on_start=None, on_result=None,
):  # fmt: skip
    """Measure training with and without recomputation, against a plain GradientTape.

    The plain baselines `plain-eager` and `plain-graph` are always among the cases. Every case
    starts from the same weights and data, in a process of its own, and runs a
    warm-up step and `steps` counted ones of SGD on a squared error.

    Args:
        build: Name of a network (see `tfgc.zoo`) or a function that builds a model.
        batch_size: Samples in a batch.
        strategies: Names of strategies, `name:n` for n segments, or functions.
        image_size: Height and width of images, for networks that take it.
        steps: Counted steps, from 1 on; five or more where peaks vary.
        modes: Which of `eager` (Python calls, compiled segments) and `graph`
            (the whole step in `tf.function`) to run each strategy in.
        memory_limit: Bytes of data that a child process may allocate; a case that needs
            more is reported as `oom`. Default: what the machine has.
        on_start: Called with the name of each case before it runs.
        on_result: Called with each `Measurement`.

    Returns:
        A list of `Measurement`, one a case, in the order in which they ran. A case that
        runs out of memory has the status `oom`, one that fails in another way `failed`.

    Raises:
        OptionError: For arguments that cannot be.
        TfgcError: If the plain model cannot be built or trained at all.
    """
    cases = plan_cases(build, batch_size, strategies, image_size, steps, modes, memory_limit)
    results = []
    for case in cases:
        if on_start is not None:
            on_start(f"{case.case}-{case.mode}")
        results.append(run(case))
        if on_result is not None:
            on_result(results[-1])
        if len(results) == len(BASELINES) and all(r.status == "failed" for r in results):
            raise TfgcError(f"nothing to compare with, plain training of {case.network!r} failed: {results[0].detail}")
    return results


def plan_cases(build, batch_size, wanted, image_size=None, steps=5, modes=("eager", "graph"), memory_limit=None):
    """The cases that `compare` measures; raises before anything is run."""
    batch_size, steps = whole("batch_size", batch_size), whole("steps", steps)
    if image_size is not None:
        image_size = whole("image_size", image_size)
    wanted = [wanted] if isinstance(wanted, str) else list(wanted)
    if not wanted:
        raise OptionError(
            f"name at least one strategy to compare with plain: {', '.join(known_strategies.available())}"
        )
    for mode in modes:
        if mode not in ("eager", "graph"):
            raise OptionError(f"there is no mode {mode!r}; name eager, graph or both")
    if not (callable(build) or isinstance(build, str)) or hasattr(build, "trainable_variables"):
        raise OptionError(f"{build!r}: give a function that builds the model, or its name: each case builds its own")
    network = build if isinstance(build, str) else getattr(build, "__name__", "model")
    common = {"batch_size": batch_size, "steps": steps, "memory_limit": memory_limit}
    cases = [Case(network, (build, image_size), case, mode, **common) for case, mode in BASELINES]
    for item in wanted:
        strategy, options, label = item, {}, getattr(item, "__name__", str(item))
        if isinstance(item, str):
            strategy, _, count = item.partition(":")
            if count:
                if not count.isdigit():
                    raise OptionError(f"strategy {item!r}: what follows the colon is a number of segments")
                options, label = {"segments": whole("segments", int(count))}, f"{strategy}({count})"
            known_strategies.check_options(strategy, options)
        cases += [
            Case(network, (build, image_size), label, mode, strategy=strategy, options=options, **common)
            for mode in modes
        ]
    return cases


def run(case):
    """Measure one case in a child process of its own."""
    result = {"network": case.network, "case": case.case, "mode": case.mode, "batch_size": case.batch_size}
    with tempfile.TemporaryDirectory() as folder:
        answer = os.path.join(folder, "answer")
        with open(os.path.join(folder, "errors"), "w+b") as errors:
            child = subprocess.Popen(
                [sys.executable, "-m", "tfgc._child", answer],
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=errors,
                env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )  # fmt: skip
            try:
                with contextlib.suppress(BrokenPipeError):
                    child.stdin.write(cloudpickle.dumps(case))
                    child.stdin.close()
                samples = memory_profiler.memory_usage(child, interval=_SAMPLE_SECONDS, timestamps=True)
            finally:
                child.kill()
                child.wait()
            errors.seek(0)
            words = errors.read().decode(errors="replace")
        if child.returncode == 0:
            with open(answer, "rb") as file:
                found = pickle.load(file)
            started = found.pop("started")
            return Measurement(**result, **found, **_resident(samples, started))
    if any(word in words for word in ("bad_alloc", "MemoryError", "ResourceExhausted")):
        return Measurement(**result, status="oom", detail="ran out of memory")
    if child.returncode == -signal.SIGKILL:
        return Measurement(**result, status="oom", detail="killed")
    if child.returncode < 0 and case.memory_limit is not None:
        # Not every kernel checks what an allocation under a limit gave it.
        name = signal.Signals(-child.returncode).name
        return Measurement(**result, status="oom", detail=f"died of {name} under its memory limit")
    return Measurement(**result, status="failed", detail=_said(words) or f"exit code {child.returncode}")


def _said(words):
    """The line of a child's last words that says what went wrong."""
    lines = [line.strip() for line in words.splitlines() if line.strip() and not re.match(r"[IWEF]\d{4} ", line)]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    return (errors or lines or [""])[-1]


def _resident(samples, started):
    """Resident set before the first step and at its largest, from outside."""
    mib = 2**20
    before = [bytes_ for bytes_, when in samples if when <= started]
    return {
        "process_base_bytes": math.floor(before[-1] * mib) if before else None,
        "process_peak_bytes": math.floor(max((b for b, _ in samples), default=0) * mib),
    }
