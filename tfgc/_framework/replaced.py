"""Attributes of an object that are others for a while."""

import contextlib
from collections.abc import Iterator
from typing import Any


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
