"""Plans as the dictionaries and lists that JSON knows, and back."""

import dataclasses
import json
from typing import Any, TypeVar

from tfgc._core import checked_json
from tfgc._core.segments import Outlook, Segment, Segmentation
from tfgc._errors import TfgcError

PlanType = TypeVar("PlanType", bound=Segmentation)
_FORMAT = "tfgc-plan"
_VERSION = 8  # of the data; files of earlier ones hold plans of layers, which tfgc no longer has

# By class, the fields that are written only where they are no default.
_OPTIONAL: dict[type, dict[str, Any]] = {
    Segment: {"host_bytes": None},
    Segmentation: {"operations": False, "link": None},
    Outlook: {"needed_bytes": None, "plain_needed_bytes": None, "budget_bytes": None, "ratio": None},
}
_DEFAULTS = {name: value for fields in _OPTIONAL.values() for name, value in fields.items()}


def written(plan: Segmentation, fingerprint: str) -> str:
    """A plan as JSON."""
    head = {"format": _FORMAT, "version": _VERSION, "fingerprint": fingerprint}
    return json.dumps({**head, **dataclasses.asdict(plan, dict_factory=_known)}, indent=1)


def _known(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    return {name: value for name, value in fields if name not in _DEFAULTS or value != _DEFAULTS[name]}


def read(kind: type[PlanType], text: str) -> tuple[PlanType, object]:
    """The plan, with its inner plans, that was `written`, and its fingerprint; a `TfgcError` for other text."""
    try:
        version, data = checked_json.document(text, _FORMAT, _VERSION)
        if version < _VERSION:
            raise TfgcError("a plan of an earlier version of tfgc: make it again with tfgc.plan")
        fingerprint = data.pop("fingerprint", None)
        return _of_kind(kind, checked_json.read(Segmentation, data, "the plan", _OPTIONAL)), fingerprint
    except ValueError as error:
        raise TfgcError(f"not a plan file, or a damaged one: {error}; make it again with tfgc.plan") from error


def _of_kind(kind: type[PlanType], plan: Segmentation) -> PlanType:
    fields = {field.name: getattr(plan, field.name) for field in dataclasses.fields(plan)}
    fields["segments"] = tuple(
        dataclasses.replace(segment, inner=segment.inner and _of_kind(kind, segment.inner)) for segment in plan.segments
    )
    return kind(**fields)
