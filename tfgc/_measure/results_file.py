"""The results file of a suite: written whole after each case, so that an interrupted run resumes.

A file holds measurements or predictions, never both; rows that a suite only predicts may stand in either.
"""

import dataclasses
import os
from collections.abc import Collection

from tfgc import _files, _suites
from tfgc._errors import OptionError
from tfgc._records import results_json
from tfgc._records.measurement import Results, Study
from tfgc._suites import _rows

FINISHED = ("ok", "oom", "predicted")


def read(suite: str, path: str | os.PathLike[str], networks: Collection[str] = ()) -> Results:
    """The results in a suite's file, of those networks alone, if some are named."""
    found = results_json.read(path)
    if found.suite != suite:
        raise OptionError(f"{str(path)!r} holds results of {found.suite or 'no suite'}, not of {suite}")
    studies = tuple(study for study in found.studies if not networks or study.network in networks)
    return dataclasses.replace(found, studies=studies)


class ResultsFile:
    """A results file that a run adds to; `results` is all that it holds."""

    def __init__(self, suite: str, path: str | os.PathLike[str], predict: bool = False, command: str = "") -> None:
        self._path, self._command = path, command
        self.results = Results((), suite=suite, predicted=predict)
        if os.path.exists(path):
            self.results = read(suite, path)
            if self.results.predicted != predict:
                kind = "predictions" if self.results.predicted else "measurements"
                raise OptionError(f"{str(path)!r} holds {kind}: name another file with -o")

    def study(self, row: _rows.SuiteRow) -> Study:
        """The study of a row, as an earlier run left it."""
        same = (study for study in self.results.studies if _key(study) == (row.network, row.batch_size, None))
        return next(same, Study(row.network, row.batch_size, published=row.published))

    def has_search(self, row: _rows.SearchRow) -> bool:
        """Whether a search for the largest batch is there."""
        found = ((study.network, study.found.get("budget_bytes")) for study in self.results.studies)
        return (row.network, row.budget_bytes) in found

    def put(self, study: Study) -> None:
        """Put a study in its place, in a file that is whole at any time; what another run put there meanwhile stays."""
        order = [row.network for row in _suites.get(self.results.suite).rows(1.0)]

        def place(one: Study) -> tuple[int, int]:
            return order.index(one.network) if one.network in order else len(order), one.batch_size

        with _files.alone(self._path):
            if os.path.exists(self._path):
                self.results = read(self.results.suite, self._path)
            others = [one for one in self.results.studies if _key(one) != _key(study)]
            for same in (one for one in self.results.studies if _key(one) == _key(study)):
                study = _both(study, same)
            studies = tuple(sorted([*others, study], key=place))
            commands = "\n".join(dict.fromkeys(filter(None, [*self.results.command.splitlines(), self._command])))
            self.results = dataclasses.replace(self.results, studies=studies, command=commands)
            _files.write(self._path, results_json.to_json(self.results))


def _both(ours: Study, theirs: Study) -> Study:
    """Our study with the records of theirs that we do not have, or that failed here alone."""
    found = {record.name: record for record in ours.records}
    for record in theirs.records:
        mine = found.get(record.name)
        failed = mine is not None and mine.status not in FINISHED and mine.asked == record.asked
        if mine is None or (failed and record.status in FINISHED):
            found[record.name] = record
    return dataclasses.replace(ours, records=tuple(found.values()), front=ours.front or theirs.front)


def _key(study: Study) -> tuple[str, int, int | None]:
    return study.network, study.batch_size, study.found.get("budget_bytes")
