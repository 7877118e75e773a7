"""Run a benchmark suite: case by case, each kept in the results file as soon as it is there.

A run that was interrupted goes on where it ended. Cases that failed are tried again; those that ran out of memory
are results. A file holds measurements or predictions, never both; rows that a suite only predicts may stand in either.
"""

import dataclasses
import os

from tfgc import _files, _suites
from tfgc._errors import OptionError, TfgcError, check_int, did_you_mean
from tfgc._measure import compare, max_batch
from tfgc._records import measurement
from tfgc._records.job import Task
from tfgc._records.measurement import Measurement, Results, Study

_FINISHED = ("ok", "oom", "predicted")


def chosen_rows(suite, scale, networks=()):
    """The rows of a suite; of those networks alone, if some are named.

    Raises:
        OptionError: For a network that the suite does not have, with near ones, or a scale that cannot be.
    """
    if not 0 < scale <= 1:
        raise OptionError(f"scale={scale!r}: it is the part of each published batch to run, above 0 and at most 1")
    rows = _suites.get(suite).rows(scale)
    known = list(dict.fromkeys(row.network for row in rows))
    for name in networks:
        if name not in known:
            raise OptionError(
                f"{suite} has no network {name!r}{did_you_mean(name, known)} (it has: {', '.join(known)})"
            )
    return [row for row in rows if not networks or row.network in networks]


def read(suite, path, networks=()):
    """The results in a suite's file, of those networks alone, if some are named.

    Raises:
        OptionError: If the file is of something else.
    """
    found = measurement.read(path)
    if found.suite != suite:
        raise OptionError(f"{str(path)!r} holds results of {found.suite or 'no suite'}, not of {suite}")
    studies = tuple(study for study in found.studies if not networks or study.network in networks)
    return dataclasses.replace(found, studies=studies)


def run(suite, path, *, scale=1.0, networks=(), predict=False, measure=False, steps=None, command="",
        on_start=None, on_done=None, on_kept=None):  # fmt: skip
    """Run the cases of a suite that its results file does not have yet; return all `Results` in it.

    Args:
        suite: Its name.
        path: The results file, made if it is not there.
        scale: The part of each published batch to run.
        networks: Run these alone.
        predict: Plan and predict, run nothing.
        measure: Plan by times measured on this device, not by flops.
        steps: Counted steps of each case, in place of the suite's.
        command: What the file says of how it was made.
        on_start: Called with what is being done.
        on_done: Called for each case that ends.
        on_kept: Called for each case that an earlier run left.
    """
    if steps is not None:
        steps = check_int("steps", steps)
    started, done, left = ((call or (lambda *_: None)) for call in (on_start, on_done, on_kept))
    file = _File(suite, path, predict, command)
    for row in chosen_rows(suite, scale, networks):
        if isinstance(row, _suites.Search):
            if file.has_search(row):
                left()
                continue
            file.put(_searched(row, predict, steps, lambda what, row=row: started(f"{row.network}: {what}")))
            done()
            continue
        study = file.study(row)
        missing = tuple(case for case in row.cases if not _is_finished(case, study))
        for _ in range(len(row.cases) - len(missing)):
            left()
        if not missing:
            continue
        missing = tuple(dataclasses.replace(case, steps=steps or case.steps) for case in missing)
        started(f"{row.network}: planning")
        try:
            foresight = compare.foresee(Task(missing, measure, row.front))
        except TfgcError as error:
            file.put(_with(study, [_failed(case, str(error)) for case in missing], row))
            for _ in missing:
                done()
            continue
        study = dataclasses.replace(study, front=foresight.front or study.front)
        for case in missing:
            started(f"{row.network}: {case.name}")
            record = _predicted(case, foresight) if predict or row.predicted else compare.run(case, foresight)
            study = _with(study, [record], row)
            file.put(study)
            done()
    return file.results


def _is_finished(case, study):
    """Whether an earlier run left this case, planned as it would be now."""
    found = _suites.record(study, case.name)
    return found is not None and found.status in _FINISHED and found.asked in ("", case.asked)


def size(row):
    """How many things there are to run in a row."""
    return len(row.cases) or 1


class _File:
    """A results file that a run goes on with."""

    def __init__(self, suite, path, predict, command):
        self.path, self.command = path, command
        self.results = Results((), suite=suite, predicted=predict)
        if os.path.exists(path):
            self.results = read(suite, path)
            if self.results.predicted != predict:
                kind = "predictions" if self.results.predicted else "measurements"
                raise OptionError(f"{str(path)!r} holds {kind}: name another file with -o")

    def study(self, row):
        """The study of a row, as an earlier run left it."""
        same = lambda study: _key(study) == (row.network, row.batch_size, None)
        empty = Study(row.network, row.batch_size, published=row.published)
        return next(filter(same, self.results.studies), empty)

    def has_search(self, row):
        """Whether a search for the largest batch is there."""
        found = ((study.network, study.found.get("budget_bytes")) for study in self.results.studies)
        return (row.network, row.budget_bytes) in found

    def put(self, study):
        """Put a study in its place; the file is whole even if the process is killed here."""
        others = [one for one in self.results.studies if _key(one) != _key(study)]
        order = [row.network for row in _suites.get(self.results.suite).rows(1.0)]
        place = lambda one: order.index(one.network) if one.network in order else len(order)
        commands = dict.fromkeys([*self.results.command.splitlines(), self.command])
        self.results = dataclasses.replace(
            self.results,
            studies=tuple(sorted([*others, study], key=lambda one: (place(one), one.batch_size))),
            command="\n".join(filter(None, commands)),
        )
        _files.write(self.path, measurement.to_json(self.results))


def _key(study):
    return study.network, study.batch_size, study.found.get("budget_bytes")


def _searched(row, predict, steps, on_start):
    """The study of a search for the largest batch; each run is a case of its own batch."""
    found = max_batch.max_batch(
        row.network, row.budget_bytes, optimizer="sgd", confirm=not predict, steps=steps or 3, on_start=on_start
    )
    figures = {"budget_bytes": row.budget_bytes}
    for key, reach in (("plain_", found.plain), ("", found.best)):
        for name in ("batch_size", "predicted_batch_size", "above", "confirmed"):
            figures[f"{key}{name}"] = getattr(reach, name)
        if predict:
            figures[f"{key}batch_size"] = None
    records = tuple(dataclasses.replace(r, case=f"{r.case} at batch {r.batch_size}") for r in found.records)
    return Study(row.network, found.batch_size, records, None, row.published, figures)


def _with(study, records, row):
    """The study with these records, in the order of the suite's cases."""
    found = {**{r.name: r for r in study.records}, **{r.name: r for r in records}}
    order = [case.name for case in row.cases]
    ranked = sorted(found.values(), key=lambda r: order.index(r.name) if r.name in order else len(order))
    return dataclasses.replace(study, records=tuple(ranked), published=row.published)


def _predicted(case, foresight):
    record = dataclasses.replace(_failed(case, foresight.errors.get(case.case, "")), asked=case.asked)
    return dataclasses.replace(
        record,
        status="failed" if case.case in foresight.errors else "predicted",
        predicted=foresight.predicted.get(case.name),
        parts=foresight.parts.get(case.case, ()),
    )


def _failed(case, why):
    return Measurement(case.network, case.case, case.mode, case.batch_size, "failed", why)
