"""A case that is compiled for a GPU instead of being run."""

from typing import Any

from tfgc._compiled import memory
from tfgc._core.plan import Plan
from tfgc._measure import training_run
from tfgc._planning import budgets
from tfgc._records.job import Case


def measure(case: Case) -> dict[str, Any]:
    """Compile the step of a case for its target; return the fields of a `Measurement` that say what it takes."""
    model = training_run.seeded(*case.build)
    plan = None if case.plan is None else Plan.from_json(case.plan)
    found = memory.compiled_memory(
        model, case.batch_size, plan, target=case.target, input_shapes=case.input_shapes, optimizer="sgd"
    )
    return {
        "peak_bytes": found.temp_bytes,
        "resident_bytes": budgets.fixed_bytes(model, "sgd"),
        "device": found.device,
        "machine": training_run.machine(compiler=found.compiler),
    }
