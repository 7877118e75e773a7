"""JSON that anyone may have changed: parsed, and made into dataclasses whose annotations are its schema.

pydantic checks it, strictly. Beside that, every field has to be there though it has a default, and integers are no less
than zero. What is wrong is a `ValueError` that names the place.
"""

import dataclasses
import functools
import json
import re
import reprlib
import types
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar

import pydantic

from tfgc._errors import TfgcError

Kind = TypeVar("Kind")

# A float that may also be infinite or not a number, such as a loss.
AnyFloat: TypeAlias = Annotated[float, pydantic.AllowInfNan()]
# What others put there under names of their own: anything to a type checker, no list or object in a file.
if TYPE_CHECKING:
    Scalar: TypeAlias = Any
else:
    Scalar = str | bool | int | float | None
_STRICTLY = pydantic.ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
# Python's own recursion ends at 1,000 calls, two or three for each level.
_DEEPEST = 200
_LARGEST = 2**63 - 1


def document(text: str, name: str, newest: int) -> tuple[int, dict[str, Any]]:
    """The version of a JSON document and what else is in it, if its format is `name`.

    Raise `TfgcError` if its version is newer than this tfgc reads, `ValueError` if it is of another format, or damaged.
    """
    if not isinstance(text, str | bytes | bytearray):
        raise ValueError(f"it is not text but {reprlib.repr(text)}")
    data = loads(text)
    if not isinstance(data, dict) or data.get("format") != name:
        raise ValueError(f"its format is not {name!r}")
    version = data.get("version")
    if type(version) is not int or version < 1:
        raise ValueError(f"version must be an integer >= 1, got {reprlib.repr(version)}")
    if version > newest:
        raise TfgcError(f"it has version {version}, but this tfgc reads up to {newest}: upgrade tfgc, or make it again")
    return version, {key: value for key, value in data.items() if key not in ("format", "version")}


def loads(text: str) -> Any:
    """Parse JSON; `ValueError` for keys given twice, integers beyond 64 bits, very deep nesting and other text."""
    try:
        data = json.loads(text, object_pairs_hook=_each_once)
    except RecursionError:
        raise ValueError(f"it is nested more than {_DEEPEST} levels deep") from None
    level, depth = [data], 0
    while level:
        depth += 1
        if depth > _DEEPEST:
            raise ValueError(f"it is nested more than {_DEEPEST} levels deep")
        if any(isinstance(one, int) and abs(one) > _LARGEST for one in level):
            raise ValueError("a number in it is too large")
        boxes = [one.values() if isinstance(one, dict) else one for one in level if isinstance(one, (dict, list))]
        level = [one for box in boxes for one in box]
    return data


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(n for n in names if names.count(n) > 1)!r} is given twice")
    return found


def read(kind: type[Kind], data: Any, where: str = "it", younger: Mapping[type, Collection[str]] = {}) -> Kind:
    """Make a dataclass of JSON data, whose place is called `where` in errors.

    Files of earlier versions may lack `younger` fields, by dataclass. Raise `ValueError` if it is something else.
    """
    try:
        (made,) = _adapter(kind).validate_json(json.dumps([data]))
    except pydantic.ValidationError as error:
        raise ValueError(_said(error.errors(include_url=False)[0], data, where)) from None
    _check(made, data, where, younger)
    return made


@functools.cache
def _adapter(kind: type) -> pydantic.TypeAdapter[Any]:
    # A tuple hands the configuration down to dataclasses that know nothing of pydantic.
    around: Any = types.GenericAlias(tuple, (kind,))
    return pydantic.TypeAdapter(around, config=_STRICTLY)


def _said(error: Mapping[str, Any], data: Any, where: str) -> str:
    *path, last = error["loc"][1:] or [None]
    for key in path:
        data, where = _inside(data, where, key)
    if error["type"] == "missing":
        return f"{where} has no field {last!r}"
    if error["type"] == "unexpected_keyword_argument":
        return f"{where} has an unknown field {reprlib.repr(last)}"
    data, where = _inside(data, where, last)
    if error["type"] == "value_error":
        return f"{where}: {error['ctx']['error']}"
    said = re.sub("^Input should be", " must be", error["msg"])
    return f"{where}{said if said[:1] == ' ' else f': {said}'}, got {reprlib.repr(data)}"


def _inside(data: Any, where: str, key: Any) -> tuple[Any, str]:
    """The value of a key and its place; the data itself where pydantic names what it tried for it."""
    try:
        return data[key], f"{where}[{key}]" if isinstance(key, int) else f"{where}.{key}"
    except (LookupError, TypeError):
        return data, where


def _check(made: Any, data: Any, where: str, younger: Mapping[type, Collection[str]]) -> None:
    """Raise for what is lost or negative; what stands in a mapping by names of the user's is not looked into."""
    if dataclasses.is_dataclass(made):
        for field in dataclasses.fields(made):
            if field.name in data:
                _check(getattr(made, field.name), data[field.name], f"{where}.{field.name}", younger)
            elif field.name not in younger.get(type(made), ()):
                raise ValueError(f"{where} has no field {field.name!r}")
    elif isinstance(made, tuple):
        for i, (one, its_data) in enumerate(zip(made, data)):
            _check(one, its_data, f"{where}[{i}]", younger)
    elif isinstance(made, dict):
        for name, one in made.items():
            if dataclasses.is_dataclass(one):
                _check(one, data[name], f"{where}[{name!r}]", younger)
    elif type(made) is int and made < 0:
        raise ValueError(f"{where} must not be negative, got {made}")
