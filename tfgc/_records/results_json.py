"""Results as JSON: written, and read again, from files of earlier versions as well."""

import dataclasses
import json
import os
import pathlib
from typing import Any

from tfgc._core import checked_json
from tfgc._errors import TfgcError
from tfgc._records.front import FrontPoint
from tfgc._records.measurement import Measurement, Results, Study
from tfgc._records.predicted import Predicted, SegmentSummary

_FORMAT = "tfgc-measurements"
_VERSION = 6
# By class, what files of earlier versions do not have.
_YOUNGER = {
    FrontPoint: ("needed_bytes",),
    Measurement: ("predicted", "parts", "round_seconds"),
    Predicted: ("host_bytes",),
    SegmentSummary: ("host_bytes",),
}


@dataclasses.dataclass(frozen=True)
class _FirstVersion:
    command: str
    records: tuple[Measurement, ...]


def to_json(results: Results) -> str:
    """Write `Results` as JSON, one record per line."""
    head = {"format": _FORMAT, "version": _VERSION, "command": results.command}
    studies = ",\n".join(_study_text(study) for study in results.studies)
    return f'{json.dumps(head)[:-1]}, "studies": [\n{studies}\n]}}\n'


def _study_text(study: Study) -> str:
    data = dataclasses.asdict(dataclasses.replace(study, records=()))
    data.pop("records")
    records = ",\n".join(json.dumps(dataclasses.asdict(record)) for record in study.records)
    return f'{json.dumps(data)[:-1]}, "records": [\n{records}\n]}}'


def from_json(text: str) -> Results:
    """Read what `to_json` wrote; raise `TfgcError` if it is something else."""
    try:
        version, data = checked_json.document(text, _FORMAT, _VERSION)
        if version < 6:
            _take_suites_out(data)
        results = _first_version(data) if version == 1 else checked_json.read(Results, data, "the file", _YOUNGER)
    except ValueError as error:
        raise TfgcError(f"not a results file, or a damaged one: {error}") from error
    return _with_compiled(results) if version < 3 else results


def read(path: str | os.PathLike[str]) -> Results:
    """Read a results file; raise `TfgcError` if it cannot be read."""
    try:
        return from_json(pathlib.Path(path).read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise TfgcError(f"cannot read {str(path)!r}: {getattr(error, 'strerror', None) or error}") from error
    except TfgcError as error:
        raise TfgcError(f"{str(path)!r}: {error}") from error


def _take_suites_out(data: dict[str, Any]) -> None:
    """Take the fields of benchmark suites out of data of an older version; raise `TfgcError` for results of a suite."""
    if data.pop("suite", ""):
        raise TfgcError("it holds results of a benchmark suite, which tfgc no longer has: measure with tfgc compare")
    data.pop("predicted", None)
    for study in _objects(data, "studies"):
        for name in ("published", "found"):
            study.pop(name, None)
        for record in _objects(study, "records"):
            for name in ("wrong", "asked", "time_ratio"):
                record.pop(name, None)


def _objects(data: dict[str, Any], name: str) -> list[dict[str, Any]]:
    found = data.get(name)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _first_version(data: dict[str, Any]) -> Results:
    """Version 1 held only records, of one network."""
    found = checked_json.read(_FirstVersion, data, "the file", _YOUNGER)
    first = found.records[0] if found.records else Measurement("", "", "", 0)
    return Results((Study(first.network, first.batch_size, found.records),), found.command)


def _with_compiled(results: Results) -> Results:
    """Up to version 2 `eager` was also the mode of compiled segments: of every case that tfgc planned."""
    studies = (dataclasses.replace(s, records=tuple(map(_compiled, s.records))) for s in results.studies)
    return dataclasses.replace(results, studies=tuple(studies))


def _compiled(record: Measurement) -> Measurement:
    planned = record.case != "plain" and record.mode == "eager"
    return dataclasses.replace(record, mode="compiled") if planned else record
