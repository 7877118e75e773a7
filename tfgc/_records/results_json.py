"""Results as JSON: written, and read again, from files of earlier versions as well."""

import dataclasses
import json
import os
from collections.abc import Mapping
from typing import Any

from tfgc._errors import TfgcError
from tfgc._records.front import BudgetChoice, FrontPoint, FrontRecord
from tfgc._records.measurement import Measurement, Predicted, Results, SegmentSummary, Study

_FORMAT = "tfgc-measurements"
_VERSION = 3


def to_json(results: Results) -> str:
    """Write `Results` as JSON, one record per line."""
    head = {"format": _FORMAT, "version": _VERSION, "command": results.command}
    head |= {"suite": results.suite, "predicted": results.predicted}
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
        data = json.loads(text)
        if data["format"] != _FORMAT:
            raise ValueError(f"its format is not {_FORMAT!r}")
        if data["version"] > _VERSION:
            raise TfgcError(
                f"the results are of version {data['version']}, this tfgc reads up to {_VERSION}: upgrade tfgc"
            )
        if data["version"] == 1:
            results = _first_version(data)
        else:
            studies = tuple(_study(study) for study in data["studies"])
            results = Results(studies, data["command"], data["suite"], data["predicted"])
        return _with_compiled(results) if data["version"] < 3 else results
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        why = f"it has no {error}" if isinstance(error, KeyError) else error
        raise TfgcError(f"not a results file, or a damaged one: {why}") from error


def read(path: str | os.PathLike[str]) -> Results:
    """Read a results file; raise `TfgcError` if it cannot be read."""
    try:
        with open(path) as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise TfgcError(f"cannot read {str(path)!r}: {getattr(error, 'strerror', None) or error}") from error
    try:
        return from_json(text)
    except TfgcError as error:
        raise TfgcError(f"{str(path)!r}: {error}") from error


def _first_version(data: Mapping[str, Any]) -> Results:
    """Version 1 held only records, of one network."""
    records = tuple(map(_record, data["records"]))
    first = records[0] if records else Measurement("", "", "", 0)
    return Results((Study(first.network, first.batch_size, records),), data["command"])


def _with_compiled(results: Results) -> Results:
    """Up to version 2 `eager` was also the mode of compiled segments: of every case that tfgc planned."""
    studies = (dataclasses.replace(s, records=tuple(map(_compiled, s.records))) for s in results.studies)
    return dataclasses.replace(results, studies=tuple(studies))


def _compiled(record: Measurement) -> Measurement:
    peer = record.case == "recompute_grad" or record.case.startswith("RematScope ")
    planned = record.case != "plain" and not (peer and not record.parts)
    return dataclasses.replace(record, mode="compiled") if planned and record.mode == "eager" else record


def _study(data: Mapping[str, Any]) -> Study:
    front = data["front"] and FrontRecord(
        **{
            **data["front"],
            "points": tuple(FrontPoint(**p) for p in data["front"]["points"]),
            "others": tuple(FrontPoint(**p) for p in data["front"]["others"]),
            "choices": tuple(
                BudgetChoice(**{**c, "point": c["point"] and FrontPoint(**c["point"])})
                for c in data["front"]["choices"]
            ),
        }
    )
    return Study(
        data["network"], data["batch_size"], tuple(map(_record, data["records"])), front, data["published"],
        data["found"],
    )  # fmt: skip


def _record(data: Mapping[str, Any]) -> Measurement:
    data = {**data, "losses": tuple(data["losses"]), "timeline": tuple(map(tuple, data["timeline"]))}
    predicted = data.get("predicted")
    data["predicted"] = predicted and Predicted(**predicted)
    data["parts"] = tuple(map(_part, data.get("parts", ())))
    data["wrong"] = tuple(data.get("wrong", ()))
    return Measurement(**data)


def _part(data: Mapping[str, Any]) -> SegmentSummary:
    return SegmentSummary(**{**data, "inner": tuple(map(_part, data["inner"]))})
