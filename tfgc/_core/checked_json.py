"""JSON that anyone may have changed: parsed, and made into dataclasses whose annotations are its schema.

Every field has to be there and of its type, and no other may be. What is wrong is a `ValueError` that names the place.
"""

import dataclasses
import functools
import json
import math
import reprlib
import types
import typing
from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal, TypeAlias, Union

from tfgc._errors import TfgcError

# A float that may also be infinite or not a number, such as a loss.
AnyFloat: TypeAlias = Annotated[float, "any"]
# What others put there under names of their own: anything to a type checker, no list or object in a file.
Scalar: TypeAlias = Annotated[Any, str | bool | int | float | None]
# Python's own recursion ends at 1,000 calls, two or three for each level.
_DEEPEST = 200
_LARGEST = 2**63 - 1
_WORDS = {str: "text", bool: "true or false", int: f"an integer from 0 to {_LARGEST}", float: "a finite number"}


def document(text: str, name: str, newest: int) -> tuple[int, dict[str, Any]]:
    """The version of a JSON document and what else is in it, if its format is `name`.

    Raises:
        TfgcError: If its version is newer than this tfgc reads.
        ValueError: If it is of another format, or damaged.
    """
    if not isinstance(text, str | bytes | bytearray):
        raise ValueError(f"it is no text, but {reprlib.repr(text)}")
    data = loads(text)
    if not isinstance(data, dict) or data.get("format") != name:
        raise ValueError(f"its format is not {name!r}")
    version = data.get("version")
    if type(version) is not int or version < 1:
        raise ValueError(f"version must be an integer >= 1, got {reprlib.repr(version)}")
    if version > newest:
        raise TfgcError(f"it is of version {version}, this tfgc reads up to {newest}: upgrade tfgc, or make it again")
    return version, {key: value for key, value in data.items() if key not in ("format", "version")}


def loads(text: str) -> Any:
    """Parse JSON; refuse keys that are given twice, integers beyond 64 bits and very deep nesting.

    Raises:
        ValueError: If it is no such JSON.
    """
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
        raise ValueError(f"{next(n for n in names if names.count(n) > 1)!r} is in it twice")
    return found


@dataclasses.dataclass(frozen=True)
class Schema:
    """How JSON data becomes dataclasses.

    Attributes:
        younger: Fields by class that files of earlier versions do not have.
        instead: What to make in place of what annotations say.
    """

    younger: Mapping[type, Collection[str]] = dataclasses.field(default_factory=dict)
    instead: Mapping[Any, type] = dataclasses.field(default_factory=dict)

    def read(self, kind: Any, data: Any, where: str = "it") -> Any:
        """`data` as what the annotation `kind` says; `where` names its place in errors.

        Raises:
            ValueError: If it is something else.
        """
        kind = self.instead.get(kind, kind)
        origin, inside = typing.get_origin(kind), typing.get_args(kind)
        if origin in (Union, types.UnionType):
            return self._either(inside, data, where)
        if origin is Literal:
            return data if data in inside else _refuse(" or ".join(map(repr, inside)), data, where)
        if origin is tuple:
            return self._several(inside, _check(list, "a list", data, where), where)
        if origin is dict:
            found = _check(dict, "an object", data, where)
            return {key: self.read(inside[1], one, f"{where}[{key!r}]") for key, one in found.items()}
        if kind == AnyFloat:
            return data if type(data) in (int, float) else _refuse("a number", data, where)
        if origin is Annotated:
            return self.read(inside[1], data, where)
        if kind is Any:
            return data
        if not dataclasses.is_dataclass(kind):
            return data if _is_scalar(kind, data) else _refuse(_WORDS[kind], data, where)
        return self._record(kind, _check(dict, "an object", data, where), where)

    def _either(self, kinds: tuple[Any, ...], data: Any, where: str) -> Any:
        if data is None and types.NoneType in kinds:
            return None
        kinds = tuple(kind for kind in kinds if kind is not types.NoneType)
        if len(kinds) == 1:
            return self.read(kinds[0], data, where)
        fits = any(_is_scalar(kind, data) for kind in kinds)
        return data if fits else _refuse(" or ".join(_WORDS[kind] for kind in kinds), data, where)

    def _several(self, kinds: tuple[Any, ...], data: list[Any], where: str) -> tuple[Any, ...]:
        if kinds[1:] == (...,):
            kinds = kinds[:1] * len(data)
        if len(kinds) != len(data):
            _refuse(f"a list of {len(kinds)}", data, where)
        return tuple(self.read(kind, one, f"{where}[{i}]") for i, (kind, one) in enumerate(zip(kinds, data)))

    def _record(self, kind: Any, data: dict[str, Any], where: str) -> Any:
        annotations = _annotations(kind)
        strange = [name for name in data if name not in annotations]
        if strange:
            raise ValueError(f"{where} has an unknown field {reprlib.repr(strange[0])}")
        lost = [name for name in annotations if name not in data and name not in self.younger.get(kind, ())]
        if lost:
            raise ValueError(f"{where} has no field {lost[0]!r}")
        fields = {name: self.read(annotations[name], one, f"{where}.{name}") for name, one in data.items()}
        try:
            return kind(**fields)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error


@functools.cache
def _annotations(kind: type) -> dict[str, Any]:
    """The annotation of each field of a dataclass."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _is_scalar(kind: Any, data: Any) -> bool:
    if kind is float:
        return type(data) in (int, float) and math.isfinite(data)
    return type(data) is kind and (kind is not int or 0 <= data <= _LARGEST)


def _check(kind: type, words: str, data: Any, where: str) -> Any:
    return data if isinstance(data, kind) else _refuse(words, data, where)


def _refuse(words: str, data: Any, where: str) -> Any:
    raise ValueError(f"{where} must be {words}, got {reprlib.repr(data)}")
