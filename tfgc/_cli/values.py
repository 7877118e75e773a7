"""The types of option values that are more than a word: lists of names, input shapes, strategy options."""

import contextlib
from typing import Any

import click

from tfgc._errors import OptionError, check_int, did_you_mean
from tfgc._units import check_budget, parse_count
from tfgc.zoo._catalogue import exported

Shapes = tuple[tuple[str, tuple[int, ...]], ...]
Settings = tuple[tuple[str, Any], ...]
# Strategy options that take bytes or a device, and no names.
_TEXTS = ("host_budget", "bandwidth")
# Those that take an integer.
_COUNTS = ("segments",)


class Count(click.types.IntParamType):
    """An integer, which is at least so much.

    >>> Count(2).convert("3", None, None)
    3
    """

    def __init__(self, least: int = 1) -> None:
        self._least = least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        name = "it" if param is None else param.name or ""
        return check_int(name, super().convert(value, param, ctx), self._least)


class Budget(click.ParamType):
    """What a step may use."""

    name = "budget"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        check_budget(value)
        return value


class Optimizer(click.ParamType):
    """The name of an optimizer of Keras."""

    name = "optimizer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        known = [name.lower() for name in exported("optimizers")]
        if value.lower() not in known:
            raise OptionError(f"there is no optimizer {value!r}{did_you_mean(value.lower(), known)}")
        return value


class Names(click.ParamType):
    """Names with commas between them.

    >>> Names().convert("sqrt:8, optimal,", None, None)
    ('sqrt:8', 'optimal')
    """

    name = "names"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        return value if isinstance(value, tuple) else tuple(filter(None, (word.strip() for word in value.split(","))))


class InputShape(click.ParamType):
    """The shape of an input without the batch.

    >>> InputShape().convert("image=32,32,3", None, None)
    ('image', (32, 32, 3))
    """

    name = "shape"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, tuple[int, ...]]:
        if isinstance(value, tuple):
            return value
        name, _, sizes = value.rpartition("=")
        shape = [parse_count(word.strip()) for word in sizes.split(",")]
        if not name or None in shape:
            raise OptionError(f"--input {value!r}: must be the input's name and its size without the batch: tokens=128")
        return name, tuple(check_int(f"--input {name}", size) for size in shape)


class Setting(click.ParamType):
    """An option of a strategy: its name, and a number, true or false, bytes or a device, or a list of names.

    >>> [Setting().convert(text, None, None) for text in ("segments=8", "nested=false", "keep=conv1,conv2")]
    [('segments', 8), ('nested', False), ('keep', ['conv1', 'conv2'])]
    >>> [Setting().convert(text, None, None) for text in ("host_budget=2GB", "bandwidth=GPU:0")]
    [('host_budget', '2GB'), ('bandwidth', 'GPU:0')]
    >>> Setting().convert("keep=block:1", None, None)
    ('keep', ['block:1'])
    """

    name = "setting"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, Any]:
        if isinstance(value, tuple):
            return value
        key, _, text = value.partition("=")
        if not key or not text:
            raise OptionError(f"--option {value!r}: must be key=value, such as segments=8")
        if key in _COUNTS:
            count = parse_count(text)
            return key, check_int(f"--option {key}", text if count is None else count)
        if text.lower() in ("true", "false"):
            return key, text.lower() == "true"
        for kind in (int, float):
            with contextlib.suppress(ValueError):
                return key, kind(text)
        if key in _TEXTS:
            return key, text
        return key, [word.strip() for word in text.split(",")]
