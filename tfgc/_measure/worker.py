"""The child process of a measurement: reads a job, does it and replies.

Run as `python -P -m tfgc._measure.worker ANSWER PARENT FOLDER...`, with a pickled `Case`, `TurnsJob`,
`PredictionJob` or `MaxBatchJob` on standard input; what that names may lie in the folders. The pickled `Reply` is
written to the file ANSWER. PARENT is the number of the process that waits for it.
The job is read before TensorFlow is imported, so that a memory limit holds for all of it.
"""

from __future__ import annotations

import os
import pickle
import resource
import sys
import traceback
from typing import Any

import cloudpickle

from tfgc import _child_process, _user_modules
from tfgc._error_texts import one_line
from tfgc._errors import TfgcError
from tfgc._records.job import (
    OUT_OF_MEMORY,
    Case,
    CasePredictions,
    Job,
    MaxBatchJob,
    MaxBatchPrediction,
    PredictionJob,
    Reply,
    TurnsJob,
)


def main(answer: str, parent: str, *folders: str) -> None:
    """Do the job on standard input, and pickle the reply into `answer`."""
    _child_process.begin(int(parent))
    _user_modules.install(folders, trusted=("__main__",))
    reply = _reply(pickle.load(sys.stdin.buffer))
    with open(f"{answer}.part", "wb") as file:
        cloudpickle.dump(reply, file)
    os.rename(file.name, answer)  # whole, so that it counts however this process ends


def _reply(job: Job) -> Reply:
    """What a job finds, or why it finds nothing."""
    try:
        if isinstance(job, Case):
            return Reply(measure(job))
        if isinstance(job, TurnsJob):
            return Reply(in_turn(job))
        return Reply(predict(job) if isinstance(job, PredictionJob) else search(job))
    except (Exception, SystemExit) as error:
        words = "".join(traceback.format_exception(error))
        out_of_memory = any(word in words for word in OUT_OF_MEMORY)
        if isinstance(error, TfgcError):
            return Reply(error=error, out_of_memory=out_of_memory)
        return Reply(failure=one_line(error), out_of_memory=out_of_memory)


def predict(job: PredictionJob) -> CasePredictions:
    """Plan and predict the cases of a `PredictionJob`: their `CasePredictions`."""
    from tfgc._measure import predict_cases, training_run

    return predict_cases.predict_cases(training_run.seeded(*job.cases[0].build), job)


def search(job: MaxBatchJob) -> MaxBatchPrediction:
    """Predict the largest batches that a `MaxBatchJob` asks for: its `MaxBatchPrediction`."""
    from tfgc._measure import predict_max_batch, training_run

    return predict_max_batch.predict_max_batch(training_run.seeded(*job.build), job)


def in_turn(job: TurnsJob) -> dict[str, Any]:
    """Time the cases of a `TurnsJob` here and now: the seconds of each round by `Case.name`."""
    from tfgc._measure import training_run

    _limit(job.cases[0].memory_limit)
    return training_run.in_turn(job)


def _limit(memory: int | None) -> None:
    if memory is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))


def measure(case: Case) -> dict[str, Any]:
    """Run a case here and now; return the measured fields of a `Measurement`."""
    _limit(case.memory_limit)
    from tfgc._measure import training_run

    return training_run.measure(case)


if __name__ == "__main__":
    main(*sys.argv[1:])
