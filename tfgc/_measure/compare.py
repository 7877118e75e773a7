"""Measure ways to train a network: one child process a case.

The peak is the device allocator's own, since a sampler misses what happens
inside one call; the process's resident set, which people see in their
monitor, is also sampled, from outside, with memory_profiler. The counter is
exact, the order in which branches run is not: each case counts several steps.
"""

from __future__ import annotations

import dataclasses
import math
import os
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tfgc import strategies as known_strategies
from tfgc._core.modes import check_mode
from tfgc._core.plan import Plan
from tfgc._core.plan import read as read_plan
from tfgc._errors import OptionError, TfgcError, check_int
from tfgc._measure import process
from tfgc._records.job import OUT_OF_MEMORY, Case, CasePrediction, CasePredictions, PredictionJob
from tfgc._records.measurement import Measurement, Study

if TYPE_CHECKING:
    import keras

PlanLike = str | os.PathLike[str] | Plan
StrategyLike = str | Callable[..., Plan]
BASELINES = (("plain", "eager"), ("plain", "graph"))
_MEASURED = ("eager", "compiled", "graph")
_NOT_PREDICTED = CasePrediction()


def compare(
    build: Callable[..., keras.Model] | str,
    batch_size: int,
    strategies: StrategyLike | Sequence[StrategyLike] | None = None,
    *,
    plans: PlanLike | Iterable[PlanLike] = (),
    budget: int | str | None = None,
    image_size: int | None = None,
    input_shapes: Mapping[str, tuple[int | None, ...]] | None = None,
    steps: int = 5,
    modes: str | Sequence[str] = ("compiled", "graph"),
    memory_limit: int | None = None,
    on_start: Callable[[str], object] | None = None,
    on_result: Callable[[Measurement], object] | None = None,
) -> list[Measurement]:
    """Measure training with and without recomputation, against a plain GradientTape.

    The plain baselines `plain-eager` and `plain-graph` are always among the cases. Every case
    starts from the same weights and data, in a separate process, and runs a
    warm-up step and `steps` counted ones of SGD on a squared error.

    Args:
        build: Name of a network (see `tfgc.zoo`) or a function that builds a model.
        batch_size: Samples in a batch.
        strategies: Names of strategies, `name:n` for n segments, or functions. Default: none where
            plans are given, else `budget` where a budget is, else `sqrt`.
        plans: Plans to measure, too: each a `tfgc.Plan` or the path of a saved one.
        budget: Bytes that the whole step may use, for the strategies that honour a budget.
        image_size: Height and width of images, for networks that take it.
        input_shapes: Mapping from input names to shapes without the batch, where
            the model leaves a dimension open.
        steps: Counted steps, at least 1; five or more where peaks vary.
        modes: Which of `eager` (op by op), `compiled` (a loop in Python that calls compiled segments) and `graph`
            (the whole step in `tf.function`) to run each strategy in. Memory is not predicted for `eager`.
        memory_limit: Bytes of data that a child process may allocate; a case that needs
            more is reported as `oom`. Default: what the machine has.
        on_start: Called with the name of each case before it runs.
        on_result: Called with each `Measurement`.

    Returns:
        A list of `Measurement`, one for each case, in the order in which they ran. A case that
        runs out of memory has the status `oom`, one that fails otherwise `failed`.

    Raises:
        OptionError: For invalid arguments.
        PlanMismatchError: If one of `plans` is for another model; then nothing is measured.
        TfgcError: If the plain model cannot be built or trained at all.
    """
    cases = plan_cases(
        build, batch_size, strategies, image_size, steps, modes, memory_limit, plans=plans, budget=budget,
        input_shapes=input_shapes,
    )  # fmt: skip
    return list(study(cases, on_start=on_start, on_result=on_result).records)


def study(
    cases: Sequence[Case],
    *,
    measure: bool = False,
    front: bool = False,
    marks: Sequence[str] = (),
    on_start: Callable[[str], object] | None = None,
    on_result: Callable[[Measurement], object] | None = None,
) -> Study:
    """Predict and run the cases of one network, the plain ones first; return its `Study`.

    Args:
        cases: What `plan_cases` returns.
        measure, front, marks: As in `PredictionJob`.
        on_start, on_result: As for `compare`.
    """
    predictions = predict(PredictionJob(tuple(cases), measure, front, tuple(marks)))
    results = []
    for case in cases:
        if on_start is not None:
            on_start(case.name)
        results.append(run(case, predictions.of(case)))
        if on_result is not None:
            on_result(results[-1])
        if len(results) == len(BASELINES) and all(r.status == "failed" for r in results):
            raise TfgcError(f"nothing to compare with, plain training of {case.network!r} failed: {results[0].detail}")
    return Study(cases[0].network, cases[0].batch_size, tuple(results), predictions.front)


def predict(job: PredictionJob) -> CasePredictions:
    """Plan and predict cases in a child process.

    Raises:
        PlanMismatchError: If a given plan is for another model.
        TfgcError: If the model cannot be built or read.
    """
    found = process.ask(job)
    assert isinstance(found, CasePredictions)
    return found


def plan_cases(
    build: Callable[..., keras.Model] | str,
    batch_size: int,
    wanted: StrategyLike | Sequence[StrategyLike] | None = None,
    image_size: int | None = None,
    steps: int = 5,
    modes: str | Sequence[str] = ("compiled", "graph"),
    memory_limit: int | None = None,
    *,
    plans: PlanLike | Iterable[PlanLike] = (),
    budget: int | str | None = None,
    input_shapes: Mapping[str, tuple[int | None, ...]] | None = None,
) -> list[Case]:
    """The cases that `compare` measures; raises before anything is run."""
    batch_size, steps = check_int("batch_size", batch_size), check_int("steps", steps)
    if image_size is not None:
        image_size = check_int("image_size", image_size)
    given = _read(plans)
    if wanted is None:
        wanted = () if given and budget is None else ("budget" if budget is not None else "sqrt",)
    wanted = [wanted] if isinstance(wanted, str) or callable(wanted) else list(wanted)
    if not wanted and not given:
        raise OptionError(
            f"name at least one strategy to compare with plain: {', '.join(known_strategies.available())}"
        )
    modes = (modes,) if isinstance(modes, str) else tuple(modes)
    for mode in modes:
        check_mode(mode, _MEASURED, "it is not measured yet")
    network = name_of(build)
    chosen = [_chosen(item, budget) for item in wanted]
    if budget is not None and not any("budget" in choice["options"] for choice in chosen):
        able = ", ".join(filter(known_strategies.honours_budget, known_strategies.available()))
        raise OptionError(f"budget={budget!r}: none of the strategies honours a budget; these do: {able}")
    common: dict[str, Any] = {
        "batch_size": batch_size,
        "steps": steps,
        "memory_limit": memory_limit,
        "input_shapes": input_shapes,
    }
    ways: list[tuple[dict[str, Any], str]] = [({"case": case}, mode) for case, mode in BASELINES]
    ways += [(choice, mode) for choice in [*chosen, *given] for mode in modes]
    return [Case(network, (build, image_size), mode=mode, **choice, **common) for choice, mode in ways]


def name_of(build: object) -> str:
    """The name of a network that is given by its name or by a function that builds it."""
    if not (callable(build) or isinstance(build, str)) or hasattr(build, "trainable_variables"):
        raise OptionError(f"{build!r}: give a function that builds the model, or its name: each case builds its own")
    return build if isinstance(build, str) else getattr(build, "__name__", "model")


def _chosen(item: StrategyLike, budget: int | str | None) -> dict[str, Any]:
    """The fields of a case that are about a strategy."""
    options: dict[str, Any] = {}
    strategy, label = item, getattr(item, "__name__", str(item))
    if isinstance(item, str):
        strategy, options = known_strategies.named(item)
        label = f"{strategy}({options['segments']})" if options else strategy
    given = budget if known_strategies.honours_budget(strategy) else None
    known_strategies.check_options(strategy, options, given)
    if given is not None:
        options, label = {**options, "budget": budget}, f"{label}({budget})"
    return {"case": label, "strategy": strategy, "options": options}


def _read(plans: PlanLike | Iterable[PlanLike]) -> list[dict[str, Any]]:
    """The fields of a case that are about a plan, for each of `plans`; their names differ."""
    choices: list[dict[str, Any]] = []
    seen: dict[str, int] = {}
    for item in [plans] if isinstance(plans, (str, os.PathLike, Plan)) else plans:
        if isinstance(item, Plan):
            plan, label = item, f"plan {item.strategy}"
        elif isinstance(item, (str, os.PathLike)):
            plan, label = read_plan(item), os.path.basename(item)
        else:
            raise OptionError(f"plans: {item!r} is neither a tfgc.Plan nor the path of one")
        seen[label] = seen.get(label, 0) + 1
        label += f" #{seen[label]}" if seen[label] > 1 else ""
        choices.append({"case": label, "plan": plan.to_json()})
    return choices


def run(case: Case, prediction: CasePrediction = _NOT_PREDICTED) -> Measurement:
    """Measure one case in a separate process, by its own plan or the predicted one."""
    record = unmeasured(case, prediction)
    if record.status == "failed":
        return record
    ended = process.run(dataclasses.replace(case, strategy=None, target_ratio=None, plan=prediction.plan or case.plan))
    if ended.reply is not None and isinstance(ended.reply.found, dict):
        found = dict(ended.reply.found)
        span = found.pop("started"), found.pop("ended")
        return dataclasses.replace(record, status="ok", **found, **_resident(ended.samples, *span))
    status, detail = _failure(ended, case.memory_limit)
    return dataclasses.replace(record, status=status, detail=detail)


def unmeasured(case: Case, prediction: CasePrediction) -> Measurement:
    """The record of a case that was not run: what is predicted of it, or why it cannot be run."""
    return Measurement(
        case.network, case.case, case.mode, case.batch_size,
        status="failed" if prediction.error else "predicted",
        detail=prediction.error,
        predicted=prediction.predicted,
        parts=prediction.parts,
        asked=case.planned_as,
    )  # fmt: skip


def _failure(ended: process.Ended, memory_limit: int | None) -> tuple[str, str]:
    """The status and the detail of a case whose process found nothing."""
    out_of_memory = ended.reply is not None and ended.reply.out_of_memory
    if out_of_memory or any(word in ended.stderr for word in OUT_OF_MEMORY):
        return "oom", "ran out of memory"
    if ended.code == -signal.SIGKILL:
        return "oom", "killed"
    if ended.code < 0 and memory_limit is not None:
        # Not every kernel checks what an allocation under a limit gave it.
        return "oom", f"died of {signal.Signals(-ended.code).name} under its memory limit"
    return "failed", ended.why


def _resident(samples: list[tuple[float, float]], started: float, ended: float) -> dict[str, int | None]:
    """The resident set before the first step, and its largest until the last one ended."""
    mib = 2**20
    samples = [(count, when) for count, when in samples if when <= ended]
    before = [bytes_ for bytes_, when in samples if when <= started]
    return {
        "process_base_bytes": math.floor(before[-1] * mib) if before else None,
        "process_peak_bytes": math.floor(max((b for b, _ in samples), default=0) * mib),
    }
