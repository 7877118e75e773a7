"""Measure ways to train a network: memory in one child process a case, time in one more in which all take turns.

The allocator's counter is exact, the order in which branches run is not: each case counts several steps.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tfgc import _progress
from tfgc._errors import TfgcError
from tfgc._measure import case_choice, process
from tfgc._measure.case_choice import PlanLike
from tfgc._measure.comparison import Comparison
from tfgc._records.job import Case, CasePrediction, CasePredictions, PredictionJob, TurnsJob
from tfgc._records.measurement import Measurement, Study
from tfgc._units import format_bytes
from tfgc.strategies import Strategy

if TYPE_CHECKING:
    import keras

_NOT_PREDICTED = CasePrediction()


def compare(
    build: Callable[..., keras.Model] | str,
    batch_size: int,
    strategies: Strategy | Sequence[Strategy] | None = None,
    *,
    plans: PlanLike | Iterable[PlanLike] = (),
    budget: float | str | None = None,
    image_size: int | None = None,
    input_shapes: Mapping[str, tuple[int | None, ...]] | None = None,
    example: Any = None,
    steps: int = 5,
    modes: str | Sequence[str] = ("compiled", "graph"),
    memory_limit: int | None = None,
    verbose: int = 1,
) -> Comparison:
    """Measure training with and without recomputation, against a plain GradientTape.

    The plain baselines `plain-eager` and `plain-graph` are always among the cases. Every case starts from the same
    weights and data, in a separate process, and runs a warm-up step and `steps` counted ones of SGD on a squared error;
    a subclassed model that is compiled runs its own `train_step`. Then all cases that ran take `steps` turns in one
    process, a step each, since a machine's pace changes by more than plans differ; their times are those. Where that
    process runs out of memory, times are of the separate ones, which the table says.

    Args:
        build: Name of a network (see `tfgc.zoo`) or a function that builds a model.
        batch_size: Samples in a batch.
        strategies: Names of strategies, `name:n` for n segments, or functions. Default: none where
            plans are given, else `budget` where a budget is, else `sqrt`, for a subclassed model `optimal`.
        plans: Plans to measure as well: each a `tfgc.Plan` or the path of a saved one.
        budget: What the whole step may use, as for `tfgc.plan`, for the strategies that honour a budget.
        image_size: Height and width of images, for networks that take it.
        input_shapes: Mapping from input names to shapes without the batch, where the model leaves a dimension open.
        example: A batch for a subclassed model, as for `tfgc.plan`. Samples of arrays are repeated or left out to make
            `batch_size` of them; specs stand for noise.
        steps: Counted steps, and turns, at least 1; with fewer than five the spread says little.
        modes: Which of `eager` (op by op), `compiled` (a loop in Python that calls compiled segments), `graph`
            (the whole step in `tf.function`) and `xla` (compiled as a whole, as `fit` does on GPUs; with its own plain
            step) to run each strategy in. Memory is not predicted for `eager`.
        memory_limit: Bytes of data that a child process may allocate; a case that needs
            more is reported as `oom`. Default: what the machine has.
        verbose: 1: show progress on standard error, a bar in a terminal, else a line for each case. 0: nothing.

    Returns:
        A `tfgc.Comparison`: a sequence with a `Measurement` for each case, in the order in which they ran. A case that
        runs out of memory has the status `oom`, one that fails otherwise `failed`.

    Raises:
        OptionError: For invalid arguments.
        PlanMismatchError: If one of `plans` is for another model; then nothing is measured.
        TfgcError: If the plain model cannot be built or trained at all.

    Example:
        >>> import tfgc
        >>> found = tfgc.compare("resnet50", 16, ["sqrt:8"])  # doctest: +SKIP
        >>> print(found)  # doctest: +SKIP
        >>> found.report("report.html")  # doctest: +SKIP
        >>> cut_off, overhead = found[2].against(found[0])  # doctest: +SKIP
    """
    shown = _progress.check_verbose(verbose)
    cases = case_choice.plan_cases(
        build, batch_size, strategies, image_size, steps, modes, memory_limit, plans=plans, budget=budget,
        input_shapes=input_shapes, example=example,
    )  # fmt: skip
    return Comparison(study(cases, shown=shown))


def study(cases: Sequence[Case], *, front: bool = False, marks: Sequence[str] = (), shown: bool = True) -> Study:
    """Predict, run and time the cases of one network, the plain ones first; `front` and `marks` as in `PredictionJob`.

    `shown`: whether progress is.
    """
    name = cases[0].network
    with _progress.bar(name, len(cases) + 1, "parts", shown) as parts:
        parts.start(f"{name}: planning")
        predictions: CasePredictions = process.ask(PredictionJob(tuple(cases), front=front, marks=tuple(marks)))
        results = []
        for case in cases:
            parts.start(f"{name}: {case.name}")
            results.append(run(case, predictions.of(case)))
            peak = results[-1].peak_bytes
            parts.done(results[-1].status if peak is None else f"peak {format_bytes(peak)}")
            if len(results) == len(case_choice.BASELINES) and all(r.status == "failed" for r in results):
                raise TfgcError(f"nothing to compare with, plain training of {name!r} failed: {results[0].detail}")
        parts.start(f"{name}: timing in turn")
        results = _timed([_planned(case, predictions.of(case)) for case in cases], results)
        parts.done()
    return Study(name, cases[0].batch_size, tuple(results), predictions.front)


def _timed(cases: Sequence[Case], records: list[Measurement]) -> list[Measurement]:
    """The records with the times of cases that took turns; as they are where these do not fit into one process."""
    able = [case for case, record in zip(cases, records) if record.status == "ok"]
    if len(able) < 2:
        return records
    ended = process.run(TurnsJob(tuple(able)))
    seconds = ended.reply.found if ended.reply is not None else None
    if not isinstance(seconds, dict):
        return records
    return [
        dataclasses.replace(
            record, round_seconds=seconds[record.name], step_seconds=statistics.median(seconds[record.name])
        )
        if record.name in seconds
        else record
        for record in records
    ]


def check_measured(study: Study) -> None:
    """Raise `TfgcError` if a case failed, or if there are cases and all of them ran out of memory."""
    failed = [record for record in study.records if record.status == "failed"]
    unfinished = [record for record in study.records if record.status != "ok"]
    if failed or (unfinished and len(unfinished) == len(study.records)):
        first = (failed or unfinished)[0]
        raise TfgcError(
            f"{len(unfinished)} of {len(study.records)} cases of {study.network} did not finish; {first.name}: "
            f"{first.status}, {first.detail}"
        )


def run(case: Case, prediction: CasePrediction = _NOT_PREDICTED) -> Measurement:
    """Measure one case in a separate process, by its own plan or the predicted one."""
    record = Measurement(
        case.network, case.case, case.mode, case.batch_size, predicted=prediction.predicted, parts=prediction.parts
    )
    if prediction.error:
        return dataclasses.replace(record, status="failed", detail=prediction.error)
    ended = process.run(_planned(case, prediction))
    if ended.reply is not None and isinstance(ended.reply.found, dict):
        found = dict(ended.reply.found)
        resident = _resident(ended.samples, found.pop("started"), found.pop("ended"))
        return dataclasses.replace(record, **found, **resident)
    status, detail = ended.outcome(case.memory_limit)
    return dataclasses.replace(record, status=status, detail=detail)


def _planned(case: Case, prediction: CasePrediction) -> Case:
    """The case with its plan in place of how to make one."""
    return dataclasses.replace(case, strategy=None, plan=prediction.plan or case.plan)


def _resident(samples: list[tuple[float, float]], started: float, ended: float) -> dict[str, int | None]:
    """The resident set before the first step, and its largest until the last one ended."""
    mib = 2**20
    samples = [(count, when) for count, when in samples if when <= ended]
    before = [bytes_ for bytes_, when in samples if when <= started]
    return {
        "process_base_bytes": math.floor(before[-1] * mib) if before else None,
        "process_peak_bytes": math.floor(max((b for b, _ in samples), default=0) * mib),
    }
