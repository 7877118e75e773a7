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
from tfgc._records.job import OUT_OF_MEMORY, Case, Job, PredictionJob, Reply, TurnsJob


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
        return Reply(done(job))
    except (Exception, SystemExit) as error:
        words = "".join(traceback.format_exception(error))
        out_of_memory = any(word in words for word in OUT_OF_MEMORY)
        if isinstance(error, TfgcError):
            return Reply(error=error, out_of_memory=out_of_memory)
        return Reply(failure=one_line(error), out_of_memory=out_of_memory)


def done(job: Job) -> Any:
    """Do a job here and now; return what it finds, as in `Reply`."""
    first = job.cases[0] if isinstance(job, (TurnsJob, PredictionJob)) else job
    limit = first.memory_limit if isinstance(first, Case) and not isinstance(job, PredictionJob) else None
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    from tfgc._measure import predict_cases, predict_max_batch, training_run

    if isinstance(job, Case):
        return training_run.measure(job)
    if isinstance(job, TurnsJob):
        return training_run.in_turn(job.cases)
    model = training_run.seeded(*first.build)
    if isinstance(job, PredictionJob):
        return predict_cases.predict_cases(model, job)
    return predict_max_batch.predict_max_batch(model, job)


if __name__ == "__main__":
    main(*sys.argv[1:])
