"""Plans as the dictionaries and lists that JSON knows, and back."""

import dataclasses
import json
from collections.abc import Iterator
from typing import Any, TypeVar

from tfgc._core import checked_json
from tfgc._core.segments import Outlook, Segment, Segmentation
from tfgc._errors import TfgcError

PlanType = TypeVar("PlanType", bound=Segmentation)
_FORMAT = "tfgc-plan"
_VERSION = 7  # Files are written in the oldest version that knows what is in them.

# By class, the fields that files of earlier versions do not have, and others only where they are no default.
_YOUNGER: dict[type, dict[str, Any]] = {
    Segment: {"result_bytes": None, "spared_work": None, "host_bytes": None, "on_device": (), "selective": False},
    Segmentation: {"operations": False, "link": None},
    Outlook: {"needed_bytes": None, "plain_needed_bytes": None, "budget_bytes": None},
}
_DEFAULTS = {name: value for fields in _YOUNGER.values() for name, value in fields.items()}


def version(plan: Segmentation) -> int:
    """The oldest version of the format that knows what is in a plan."""
    segments = list(_all_segments(plan))
    if plan.operations:
        return 7
    if plan.outlook is not None and plan.outlook.needed_bytes is not None:
        return 6
    if any(segment.selective for segment in segments):
        return 5
    if plan.link is not None or any(segment.offload for segment in segments):
        return 4
    return 3 if any(segment.result_bytes is not None for segment in segments) else 1


def _all_segments(plan: Segmentation) -> Iterator[Segment]:
    """The segments of a plan and of its replays."""
    for segment in plan.segments:
        yield segment
        yield from () if segment.inner is None else _all_segments(segment.inner)


def written(plan: Segmentation, fingerprint: str) -> str:
    """A plan as JSON."""
    head = {"format": _FORMAT, "version": version(plan), "fingerprint": fingerprint}
    return json.dumps({**head, **dataclasses.asdict(plan, dict_factory=_known)}, indent=1)


def _known(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    return {name: value for name, value in fields if name not in _DEFAULTS or value != _DEFAULTS[name]}


def read(kind: type[PlanType], text: str) -> tuple[PlanType, object]:
    """The plan, with its inner plans, that was `written`, and its fingerprint; a `TfgcError` for other text."""
    try:
        _, data = checked_json.document(text, _FORMAT, _VERSION)
        fingerprint = data.pop("fingerprint", None)
        if data.pop("calls", False) or data.pop("parts", None):
            raise TfgcError("a plan by the calls of layers, which tfgc no longer makes: make it again with tfgc.plan")
        _drop_slices(data)
        return _of_kind(kind, checked_json.read(Segmentation, data, "the plan", _YOUNGER)), fingerprint
    except ValueError as error:
        raise TfgcError(f"not a plan file, or a damaged one: {error}; make it again with tfgc.plan") from error


def _drop_slices(data: Any) -> None:
    """Take the number of slices of the batch off each segment, of which earlier files may have more than one."""
    if isinstance(data, dict):
        if data.pop("chunks", 1) != 1:
            raise TfgcError(
                "a plan with segments in slices of the batch, which plans no longer have: make it again without, and "
                "run what is to be sliced by tfgc.recompute(fn, slices=...)"
            )
        data = list(data.values())
    for value in data if isinstance(data, list) else ():
        _drop_slices(value)


def _of_kind(kind: type[PlanType], plan: Segmentation) -> PlanType:
    fields = {field.name: getattr(plan, field.name) for field in dataclasses.fields(plan)}
    fields["segments"] = tuple(
        dataclasses.replace(segment, inner=segment.inner and _of_kind(kind, segment.inner)) for segment in plan.segments
    )
    return kind(**fields)
