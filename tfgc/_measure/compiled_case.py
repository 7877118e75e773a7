"""A case of a benchmark suite that is compiled for a GPU in place of being run, in a child process."""

import concurrent.futures
import dataclasses
import multiprocessing

from tfgc._compiled import compiler, memory
from tfgc._core.plan import Plan
from tfgc._errors import TfgcError, one_line
from tfgc._measure import compare, training_run
from tfgc._planning import budgets
from tfgc._records.compiled_memory import CompiledMemory
from tfgc._records.job import Case
from tfgc._records.measurement import Measurement
from tfgc._records.reply import CasePrediction


def compile_case(target: str, case: Case, prediction: CasePrediction) -> Measurement:
    """Compile for a target the step of a case by its predicted plan: the record of its bytes, or why there are none."""
    compiler.check_installed()
    record = compare.unmeasured(case, prediction)
    if record.status == "failed":
        return record
    spawn = multiprocessing.get_context("spawn")
    try:
        with concurrent.futures.ProcessPoolExecutor(1, mp_context=spawn) as process:
            found, weights = process.submit(_compiled, case, prediction.plan, target).result()
    except (TfgcError, concurrent.futures.process.BrokenProcessPool) as error:
        return dataclasses.replace(record, status="failed", detail=one_line(error))
    return dataclasses.replace(
        record,
        status="ok",
        peak_bytes=found.temp_bytes,
        resident_bytes=weights,
        device=found.device,
        machine=training_run.machine(compiler=found.compiler),
    )


def _compiled(case: Case, plan: str | None, target: str) -> tuple[CompiledMemory, int]:
    """What the step takes, and the bytes of its weights."""
    model = training_run.seeded(*case.build)
    chosen = None if plan is None else Plan.from_json(plan)
    found = memory.compiled_memory(
        model, case.batch_size, chosen, target=target, input_shapes=case.input_shapes, optimizer="sgd"
    )
    return found, budgets.fixed_bytes(model, "sgd")
