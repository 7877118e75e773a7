"""Attributes of an object, and context variables, that are others for a while."""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any, TypeVar

Value = TypeVar("Value")


@contextlib.contextmanager
def replaced(thing: Any, name: str, instead: Any) -> Iterator[None]:
    """Let a method or attribute of an object be another for a while."""
    attributes = vars(thing)
    is_own, own = name in attributes, attributes.get(name)
    attributes[name] = instead
    try:
        yield
    finally:
        del attributes[name]
        if is_own:
            attributes[name] = own


@contextlib.contextmanager
def within(variable: contextvars.ContextVar[Any], value: Value) -> Iterator[Value]:
    """Let a context variable have a value for a while; gives the value."""
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)
