"""Run a job in a child process, sample its memory, and read its reply.

A model may fill the GPU, and an allocator remembers what ran before, so each job has its own process.
"""

import contextlib
import dataclasses
import os
import pickle
import re
import resource
import signal
import subprocess
import sys
import tempfile
from typing import Any, cast

import cloudpickle
import memory_profiler

from tfgc import _child_process, _user_modules
from tfgc._error_texts import one_line
from tfgc._errors import TfgcError
from tfgc._records.job import OUT_OF_MEMORY, Job, MaxBatchJob, PredictionJob, Reply

_SAMPLE_SECONDS = 0.1


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a child process ended."""

    # None if it died before it could reply; it may have died after that: TensorFlow aborts at the end of some processes
    # that ran out of memory.
    reply: Reply | None
    code: int  # its exit code; below zero, the signal that killed it
    stderr: str
    samples: list[tuple[float, float]]  # pairs (MiB, when) of its resident set

    @property
    def why(self) -> str:
        """Why it found nothing, in a line."""
        if self.reply is not None:
            return self.reply.failure if self.reply.error is None else str(self.reply.error)
        if self.code < 0:
            return _child_process.died(-self.code) + "".join(f": {line}" for line in _errors(self.stderr)[-1:])
        return (_errors(self.stderr) or _lines(self.stderr) or [f"exit code {self.code}"])[-1]

    def outcome(self, memory_limit: int | None = None) -> tuple[str, str]:
        """Classify a process that found nothing within a limit in bytes: `oom` or `failed`, and the reason."""
        if self.reply is not None and not self.reply.out_of_memory:
            return "failed", self.why
        if self.reply is not None or any(word in self.stderr for word in OUT_OF_MEMORY):
            return "oom", "ran out of memory"
        if self.code == -signal.SIGKILL:
            return "oom", self.why
        if self.code < 0 and (memory_limit is not None or _is_limited()):
            # Not every kernel checks what an allocation under a limit gave it.
            return "oom", f"under a memory limit it {self.why}"
        return "failed", self.why


def run(job: Job) -> Ended:
    """Run a job in a child process and wait for its end."""
    pickled = _pickled(job)
    path, folders = _user_modules.for_child()
    # Its temporary files, such as AutoGraph's, would stay if a signal ends it.
    with tempfile.TemporaryDirectory(prefix="tfgc-", ignore_cleanup_errors=True) as folder:
        answer = os.path.join(folder, "reply")
        with open(os.path.join(folder, "stderr"), "w+b") as stderr:
            child = subprocess.Popen(
                [sys.executable, "-P", "-m", "tfgc._measure.worker", answer, str(os.getpid()), *folders],
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=stderr,
                env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONPATH": path, "TMPDIR": folder},
            )  # fmt: skip
            assert child.stdin is not None
            try:
                with contextlib.suppress(BrokenPipeError):
                    child.stdin.write(pickled)
                    child.stdin.close()
                samples = memory_profiler.memory_usage(cast(Any, child), interval=_SAMPLE_SECONDS, timestamps=True)
            finally:
                child.kill()
                child.wait()
            stderr.seek(0)
            words = stderr.read().decode(errors="replace")
        reply = None
        if os.path.exists(answer):
            with open(answer, "rb") as file:
                reply = pickle.load(file)
        return Ended(reply, child.returncode, words, samples)


def _pickled(job: Job) -> bytes:
    try:
        return cloudpickle.dumps(job)
    except Exception as error:  # of what the user's function holds
        raise TfgcError(f"{job.network!r} cannot be sent to a child process: {one_line(error)}") from error


def ask(job: PredictionJob | MaxBatchJob) -> Any:
    """What a child process finds for a job, or the error that it raises; if a signal kills it, a second one tries."""
    ended = run(job)
    if ended.reply is None and ended.code < 0:
        ended = run(job)
    if ended.reply is not None and ended.reply.error is not None:
        raise ended.reply.error
    if ended.reply is None or ended.reply.failure:
        raise TfgcError(f"{job.network!r} cannot be built and planned: {ended.outcome()[1]}")
    return ended.reply.found


def _lines(stderr: str) -> list[str]:
    """What was printed on standard error besides logs."""
    return [line.strip() for line in stderr.splitlines() if line.strip() and not re.match(r"[IWEF]\d{4} ", line)]


def _errors(stderr: str) -> list[str]:
    """The lines of standard error that say what went wrong."""
    return [line for line in _lines(stderr) if re.match(r"[\w.]*(Error|Exception)\b", line)]


def _is_limited() -> bool:
    """Whether the memory of child processes is limited, as by `ulimit -v`."""
    limits = (resource.RLIMIT_AS, resource.RLIMIT_DATA)
    return any(resource.getrlimit(limit)[0] != resource.RLIM_INFINITY for limit in limits)
