"""What to do with a model that has no graph: name the parts of it that have one.

The paths are what the user would write: `model.generator`, `model.nets[0]`, `model.parts["a"]`.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any

import keras

from tfgc._framework.layer_settings import books

_MOST = 8
# Modules whose objects hold no models of the user.
_FOREIGN = ("keras", "tensorflow", "numpy", "builtins", "types", "functools", "abc", "threading", "logging")


def advice(model: keras.Model, has_graph: Callable[[Any], bool]) -> str:
    """Say how to enable a subclassed model; `has_graph` returns whether a part of it could be planned.

    Example:
        >>> import keras
        >>> class Outer(keras.Model):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.nets = [keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])]
        >>> advice(Outer(), lambda part: isinstance(part, keras.Sequential))
        'Enable each functional part that it holds: tfgc.enable(model.nets[0])'
    """
    paths = parts(model, has_graph)
    if not paths:
        return (
            "It plans keras.Sequential and functional models; for others choose the large layers: "
            "tfgc.enable(model, layers=[...])"
        )
    calls = ", ".join(f"tfgc.enable({path})" for path in paths[:_MOST])
    more = "" if len(paths) <= _MOST else f", and {len(paths) - _MOST} more"
    return f"Enable each functional part that it holds: {calls}{more}"


def parts(model: keras.Model, has_graph: Callable[[Any], bool]) -> list[str]:
    """The paths of the parts of a model that could be planned."""
    return [path for path, part in _walk(model, has_graph) if not part.built or part.weights]


def _walk(model: keras.Model, wanted: Callable[[Any], bool]) -> Iterator[tuple[str, Any]]:
    """Paths and parts, the nearest first, without the parts inside a part."""
    seen = {id(model)}
    queue: list[tuple[str, Any]] = [("model", model)]
    for path, thing in queue:
        if thing is not model and isinstance(thing, keras.Model) and wanted(thing):
            yield path, thing
            continue
        for step, inner in _held(thing):
            if id(inner) not in seen:
                seen.add(id(inner))
                queue.append((path + step, inner))


def _held(thing: Any) -> Iterator[tuple[str, Any]]:
    """What a thing holds, and how that is written."""
    if isinstance(thing, (list, tuple)):
        yield from ((f"[{i}]", inner) for i, inner in enumerate(thing))
    elif isinstance(thing, dict):
        yield from ((f"[{json.dumps(k) if isinstance(k, str) else k}]", inner) for k, inner in thing.items())
    elif isinstance(thing, keras.Layer):
        yield from ((f".{name}", inner) for name, inner in vars(thing).items() if name not in books())
    elif hasattr(thing, "__dict__") and type(thing).__module__.partition(".")[0] not in _FOREIGN:
        yield from ((f".{name}", inner) for name, inner in vars(thing).items())
