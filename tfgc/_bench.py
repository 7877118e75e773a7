"""Run a benchmark suite: case by case, each kept in the results file as soon as it is there.

A run that was interrupted goes on where it ended. Cases that failed are tried again; those that ran out of memory
are results.
"""

import dataclasses
import os

from tfgc import _measure, _results, _search, bench
from tfgc._case import Task
from tfgc._errors import OptionError, TfgcError, near
from tfgc._results import Measurement, Results, Study

_FINISHED = ("ok", "oom")


def chosen_rows(suite, scale, networks=()):
    """The rows of a suite; of those networks alone, if some are named.

    Raises:
        OptionError: For a network that the suite does not have, with near ones, or a scale that cannot be.
    """
    if not 0 < scale <= 1:
        raise OptionError(f"scale={scale!r}: it is the part of each published batch to run, above 0 and at most 1")
    rows = bench.get(suite).rows(scale)
    known = list(dict.fromkeys(row.network for row in rows))
    for name in networks:
        if name not in known:
            raise OptionError(f"{suite} has no network {name!r}{near(name, known)} (it has: {', '.join(known)})")
    return [row for row in rows if not networks or row.network in networks]


def run(suite, path, *, scale=1.0, networks=(), predict=False, measure=False, steps=None, command="",
        on_start=None, on_done=None):  # fmt: skip
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
        on_done: Called with the number of cases that are finished.
    """
    rows = chosen_rows(suite, scale, networks)
    kept = _kept(path, suite, predict)
    for row in rows:
        if isinstance(row, bench.Search):
            kept = _search_for(row, kept, path, scale, command, predict, steps, on_start)
            if on_done is not None:
                on_done(1)
            continue
        study = _study(kept, row)
        done = {r.name for r in study.records if r.status in (("ok", "oom", "predicted") if predict else _FINISHED)}
        missing = tuple(case for case in row.cases if case.name not in done)
        if on_done is not None:
            on_done(len(row.cases) - len(missing))
        if not missing:
            continue
        if steps is not None:
            missing = tuple(dataclasses.replace(case, steps=steps) for case in missing)
        if on_start is not None:
            on_start(f"{row.network}: planning")
        try:
            foresight = _measure.foresee(Task(missing, measure, row.front))
        except TfgcError as error:
            study = _with(study, [_failed(case, str(error)) for case in missing], row)
            kept = _put(kept, study, path, scale, command)
            if on_done is not None:
                on_done(len(missing))
            continue
        study = dataclasses.replace(study, front=foresight.front or study.front)
        for case in missing:
            if on_start is not None:
                on_start(f"{row.network}: {case.name}")
            record = _predicted(case, foresight) if predict else _measure.run(case, foresight)
            study = _with(study, [record], row)
            kept = _put(kept, study, path, scale, command)
            if on_done is not None:
                on_done(1)
    return kept


def size(row):
    """How many things there are to run in a row."""
    return len(row.cases) or 1


def _search_for(row, kept, path, scale, command, predict, steps, on_start):
    """The results with the largest batch in a budget, searched for unless it is there."""
    if any((s.network, s.found.get("budget_bytes")) == (row.network, row.budget_bytes) for s in kept.studies):
        return kept
    told = None if on_start is None else lambda what: on_start(f"{row.network}: {what}")
    found = _search.max_batch(
        row.network, row.budget_bytes, optimizer="sgd", confirm=not predict, steps=steps or 1, on_start=told
    )
    figures = {"budget_bytes": row.budget_bytes}
    for key, reach in (("plain_", found.plain), ("", found.best)):
        for name in ("batch_size", "predicted_batch_size", "above", "confirmed"):
            figures[f"{key}{name}"] = getattr(reach, name)
        if predict:
            figures[f"{key}batch_size"] = None
    study = Study(row.network, found.batch_size, found.records, None, row.published, figures)
    return _put(kept, study, path, scale, command)


def _kept(path, suite, predict):
    """What an earlier run left, or nothing."""
    if not os.path.exists(path):
        return Results((), suite=suite)
    found = _results.read(path)
    if found.suite != suite:
        raise OptionError(f"{str(path)!r} holds results of {found.suite or 'no suite'!r}: name another file with -o")
    if not predict and any(record.status == "predicted" for study in found.studies for record in study.records):
        raise OptionError(f"{str(path)!r} holds predictions: name another file with -o")
    return found


def _study(results, row):
    same = lambda study: (study.network, study.batch_size) == (row.network, row.batch_size)
    return next(filter(same, results.studies), Study(row.network, row.batch_size, published=row.published))


def _with(study, records, row):
    """The study with these records, in the order of the suite's cases."""
    found = {**{r.name: r for r in study.records}, **{r.name: r for r in records}}
    order = [case.name for case in row.cases]
    ranked = sorted(found.values(), key=lambda r: order.index(r.name) if r.name in order else len(order))
    return dataclasses.replace(study, records=tuple(ranked), published=row.published)


def _put(results, study, path, scale, command):
    """The results with this study; the file has them, whole, even if the process is killed here."""
    key = lambda s: (s.network, s.batch_size)
    studies = [study if key(s) == key(study) else s for s in results.studies]
    if key(study) not in map(key, results.studies):
        studies.append(study)
    order = [row.network for row in bench.get(results.suite).rows(scale)]
    studies.sort(key=lambda s: order.index(s.network))
    commands = dict.fromkeys([*results.command.splitlines(), command])
    results = dataclasses.replace(
        results, studies=tuple(studies), scale=scale, command="\n".join(filter(None, commands))
    )
    with open(f"{path}.new", "w") as file:
        file.write(_results.to_json(results))
    os.replace(f"{path}.new", path)
    return results


def _predicted(case, foresight):
    record = _failed(case, foresight.errors.get(case.case, ""))
    return dataclasses.replace(
        record,
        status="failed" if case.case in foresight.errors else "predicted",
        predicted=foresight.predicted.get(case.name),
        parts=foresight.parts.get(case.case, ()),
    )


def _failed(case, why):
    return Measurement(case.network, case.case, case.mode, case.batch_size, "failed", why)
