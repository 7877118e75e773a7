"""Run a job in a child process, sample its memory, and read its reply.

A model may fill the GPU, and an allocator remembers what ran before, so each job has its own process.
"""

import contextlib
import dataclasses
import os
import pickle
import re
import subprocess
import sys
import tempfile
from typing import Any, cast

import cloudpickle
import memory_profiler

from tfgc import _user_modules
from tfgc._errors import TfgcError
from tfgc._records.job import Case, MaxBatchJob, PredictionJob
from tfgc._records.reply import Reply

_SAMPLE_SECONDS = 0.1


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a child process ended.

    Attributes:
        reply: Its `Reply`; None if it died before it could reply.
        code: Its exit code; below zero, the signal that killed it.
        stderr: What it printed on standard error.
        samples: Pairs (MiB, when) of its resident set.
    """

    reply: Reply | None
    code: int
    stderr: str
    samples: list[tuple[float, float]]

    @property
    def why(self) -> str:
        """Why it found nothing, in a line."""
        if self.reply is None:
            return _last_error(self.stderr) or f"exit code {self.code}"
        return self.reply.failure if self.reply.error is None else str(self.reply.error)


def run(job: Case | PredictionJob | MaxBatchJob) -> Ended:
    """Run a job in a child process and wait for its end."""
    path, folders = _user_modules.for_child()
    with tempfile.TemporaryDirectory() as folder:
        answer = os.path.join(folder, "reply")
        with open(os.path.join(folder, "stderr"), "w+b") as stderr:
            child = subprocess.Popen(
                [sys.executable, "-P", "-m", "tfgc._measure.worker", answer, *folders],
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=stderr,
                env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONPATH": path},
            )  # fmt: skip
            assert child.stdin is not None
            try:
                with contextlib.suppress(BrokenPipeError):
                    child.stdin.write(cloudpickle.dumps(job))
                    child.stdin.close()
                samples = memory_profiler.memory_usage(cast(Any, child), interval=_SAMPLE_SECONDS, timestamps=True)
            finally:
                child.kill()
                child.wait()
            stderr.seek(0)
            words = stderr.read().decode(errors="replace")
        reply = None
        if child.returncode == 0:
            with open(answer, "rb") as file:
                reply = pickle.load(file)
        return Ended(reply, child.returncode, words, samples)


def ask(job: PredictionJob | MaxBatchJob) -> object:
    """What a child process finds for a job.

    Raises:
        TfgcError: The error that the child raised; or if it failed in another way or died.
    """
    ended = run(job)
    if ended.reply is not None and ended.reply.error is not None:
        raise ended.reply.error
    if ended.reply is None or ended.reply.failure:
        raise TfgcError(f"{job.network!r} cannot be built and planned: {ended.why}")
    return ended.reply.found


def _last_error(stderr: str) -> str:
    """The line of standard error that says what went wrong."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip() and not re.match(r"[IWEF]\d{4} ", line)]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    return (errors or lines or [""])[-1]
