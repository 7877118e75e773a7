"""Plans as the dictionaries and lists that JSON knows, and back."""

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from tfgc._core import checked_json
from tfgc._core.segments import Segment, Segmentation

PlanType = TypeVar("PlanType", bound=Segmentation)


# Fields of a segment that files of the first versions do not have.
_OF_RESULTS = ("result_bytes", "spared_work")
# Fields of a segment that only those have that store products with weights.
_OF_SELECTIVE = ("selective",)
# Fields of a plan that only those of calls have.
_OF_CALLS = ("calls", "parts")
# Fields of a segment, and of a plan, that only those have that store on the host.
_OF_HOST, _OF_LINK = ("host_bytes", "on_device"), ("link",)
# By class, what files of earlier versions, or other plans, do not have.
_YOUNGER = {Segment: (*_OF_RESULTS, *_OF_HOST, *_OF_SELECTIVE), Segmentation: (*_OF_CALLS, *_OF_LINK)}


def version(plan: Segmentation) -> int:
    """The oldest version of the format that knows what is in a plan."""
    if _is_selective(plan):
        return 5
    if plan.link is not None or any(segment.offload for segment in plan.segments):
        return 4
    return 3 if _takes_over_results(plan) else 1 + plan.calls


def _takes_over_results(plan: Segmentation) -> bool:
    """Whether the plan says what replays take over of the first run."""
    inside = [segment.inner for segment in plan.segments if segment.inner is not None]
    others = any(map(_takes_over_results, [*inside, *plan.parts.values()]))
    return others or any(segment.result_bytes is not None for segment in plan.segments)


def _is_selective(plan: Segmentation) -> bool:
    """Whether segments of the plan, or of its parts, store products with weights."""
    return any(segment.selective for segment in plan.segments) or any(map(_is_selective, plan.parts.values()))


def plain(plan: Segmentation) -> dict[str, Any]:
    """A plan as plain data; only a plan of calls has more than the first version of the format."""
    data = dataclasses.asdict(plan)
    for fields, segment in zip(data["segments"], plan.segments):
        fields["inner"] = None if segment.inner is None else plain(segment.inner)
        for name in _OF_RESULTS if segment.result_bytes is None else ():
            del fields[name]
        for name in () if segment.selective else _OF_SELECTIVE:
            del fields[name]
        for name in () if segment.offload else _OF_HOST:
            del fields[name]
    for name in _OF_LINK if plan.link is None else ():
        del data[name]
    if plan.calls:
        return {**data, "parts": {name: plain(part) for name, part in plan.parts.items()}}
    return {name: value for name, value in data.items() if name not in _OF_CALLS}


def revived(kind: type[PlanType], data: Mapping[str, Any]) -> PlanType:
    """The plan, with its inner plans, that `plain` turned into `data`.

    Raises:
        ValueError: If it is not what `plain` makes.
    """
    return _of_kind(kind, checked_json.read(Segmentation, data, "the plan", _YOUNGER))


def _of_kind(kind: type[PlanType], plan: Segmentation) -> PlanType:
    fields = {field.name: getattr(plan, field.name) for field in dataclasses.fields(plan)}
    fields["segments"] = tuple(
        dataclasses.replace(segment, inner=segment.inner and _of_kind(kind, segment.inner)) for segment in plan.segments
    )
    fields["parts"] = {name: _of_kind(kind, part) for name, part in plan.parts.items()}
    return kind(**fields)
