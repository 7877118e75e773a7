"""Run a benchmark suite: case by case, each kept in the results file as soon as it is there.

An interrupted run resumes where it stopped. Cases that failed are tried again; those that ran out of memory stay.
"""

import dataclasses
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Literal, TypeAlias

from tfgc import _suites
from tfgc._compiled import compiler
from tfgc._errors import OptionError, TfgcError, check_int, did_you_mean
from tfgc._measure import compare, max_batch, process
from tfgc._measure.results_file import FINISHED, ResultsFile
from tfgc._planning import budgets
from tfgc._records.job import Case, CasePrediction, CasePredictions, PredictionJob
from tfgc._records.measurement import Measurement, Study
from tfgc._suites import _rows

# Called with what happens to a case (work on it started, it is done, or an earlier run left it), and with what it is.
OnEvent: TypeAlias = Callable[[Literal["started", "done", "kept"], str], object]


def chosen_rows(suite: str, scale: float, networks: Collection[str] = ()) -> list[_rows.SuiteRow | _rows.SearchRow]:
    """The rows of a suite; of those networks alone, if some are named."""
    if not 0 < scale <= 1:
        raise OptionError(f"scale={scale!r}: it is the part of each published batch to run, above 0 and at most 1")
    rows = _suites.get(suite).rows(scale)
    known = list(dict.fromkeys(row.network for row in rows))
    for one in networks:
        if one not in known:
            raise OptionError(f"{suite} has no network {one!r}{did_you_mean(one, known)} (it has: {', '.join(known)})")
    return [row for row in rows if not networks or row.network in networks]


def run(
    rows: Iterable[_rows.SuiteRow | _rows.SearchRow], file: ResultsFile, on_event: OnEvent, *,
    measure: bool = False, steps: int | None = None,
) -> None:  # fmt: skip
    """Run the cases of a suite that its results file does not have yet, and put them there.

    Where the file is one of predictions, cases are planned and predicted, and nothing is run. If a largest batch cannot
    be found, that is raised after all other rows were run. With `measure`, plans count times that are measured on this
    device, not flops. `steps` are the counted ones of each case, instead of the suite's.
    """
    if steps is not None:
        steps = check_int("steps", steps)
    errors = []
    for row in rows:
        if isinstance(row, _rows.SearchRow):
            try:
                _search(row, file, on_event, steps)
            except TfgcError as error:
                errors.append(error)
                on_event("done", "largest batch")
        else:
            run_one = compare.unmeasured if file.results.predicted or row.predicted else compare.run
            if run_one is compare.run and any(case.target for case in row.cases):
                compiler.check_installed()
            _cases(row, file, on_event, measure, steps, run_one)
    if errors:
        raise errors[0]


def _cases(
    row: _rows.SuiteRow, file: ResultsFile, on_event: OnEvent, measure: bool, steps: int | None,
    run_one: Callable[[Case, CasePrediction], Measurement],
) -> None:  # fmt: skip
    """Run what is missing of a row, each case by `run_one`."""
    study = file.study(row)
    missing, shares = [], []
    for case in row.cases:
        if _is_finished(case, study):
            on_event("kept", case.name)
        else:
            # Of compiled steps, budgets are planned after the plain one, since they are shares of it.
            apart = case.target and "budget" in case.options
            (shares if apart else missing).append(dataclasses.replace(case, steps=steps or case.steps))
    for cases in filter(None, (missing, shares)):
        study = _planned_and_run(row, cases, study, file, on_event, measure, run_one)


def _planned_and_run(
    row: _rows.SuiteRow, cases: Sequence[Case], study: Study, file: ResultsFile, on_event: OnEvent, measure: bool,
    run_one: Callable[[Case, CasePrediction], Measurement],
) -> Study:  # fmt: skip
    """The study with the records of these cases."""
    on_event("started", f"{row.network}: planning")
    try:
        planned = tuple(_in_bytes(case, study) for case in cases)
        predictions: CasePredictions = process.ask(PredictionJob(planned, measure, row.front))
    except TfgcError as error:
        study = _with(study, [compare.unmeasured(case, CasePrediction(error=str(error))) for case in cases], row)
        file.put(study)
        for case in cases:
            on_event("done", case.name)
        return study
    study = dataclasses.replace(study, front=predictions.front or study.front)
    for case in cases:
        on_event("started", f"{row.network}: {case.name}")
        study = _with(study, [run_one(case, predictions.of(case))], row)
        file.put(study)
        on_event("done", case.name)
    return study


def _in_bytes(case: Case, study: Study) -> Case:
    """A compiled case whose budget is a share of the plain compiled step, as bytes of it; others as they are."""
    plain = study.record("plain-xla")
    share = budgets.check_budget(case.options["budget"]) if case.target and "budget" in case.options else None
    if share is None or plain is None or plain.status != "ok":
        return case
    whole = (plain.peak_bytes or 0) + (plain.resident_bytes or 0)
    return dataclasses.replace(case, options={**case.options, "budget": int(share * whole)})


def _search(row: _rows.SearchRow, file: ResultsFile, on_event: OnEvent, steps: int | None) -> None:
    """Search the largest batch of a row, unless it is there; each run is a case with its batch in its name."""
    if file.has_search(row):
        on_event("kept", "largest batch")
        return
    confirm = not file.results.predicted
    found = max_batch.max_batch(
        row.network, row.budget_bytes, optimizer="sgd", confirm=confirm, steps=steps or 3,
        on_start=lambda what: on_event("started", f"{row.network}: largest batch, {what}"),
    )  # fmt: skip
    figures: dict[str, object] = {"budget_bytes": row.budget_bytes}
    for key, reach in (("plain_", found.plain), ("", found.best)):
        for name in ("batch_size", "predicted_batch_size", "above", "confirmed"):
            figures[f"{key}{name}"] = getattr(reach, name)
        if not confirm:
            figures[f"{key}batch_size"] = None
    records = tuple(dataclasses.replace(r, case=f"{r.case} at batch {r.batch_size}") for r in found.records)
    file.put(Study(row.network, found.batch_size, records, None, row.published, figures))
    on_event("done", "largest batch")


def _is_finished(case: Case, study: Study) -> bool:
    """Whether an earlier run left this case, planned as it would be now."""
    found = study.record(case.name)
    return found is not None and found.status in FINISHED and found.asked in ("", case.planned_as)


def _with(study: Study, records: list[Measurement], row: _rows.SuiteRow) -> Study:
    """The study with these records, in the order of the suite's cases."""
    found = {**{r.name: r for r in study.records}, **{r.name: r for r in records}}
    order = [case.name for case in row.cases]
    ranked = sorted(found.values(), key=lambda r: order.index(r.name) if r.name in order else len(order))
    return dataclasses.replace(study, records=tuple(ranked), published=row.published)
