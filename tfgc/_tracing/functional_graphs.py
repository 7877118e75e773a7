"""Which models have a graph of layers, which of them tfgc has changed, and which parts of other models have one.

The paths of parts are what the user would write: `model.generator`, `model.nets[0]`, `model.parts["a"]`.
"""

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any

import keras

from tfgc._errors import UnsupportedModelError
from tfgc._framework import keras_models, tensor_attributes
from tfgc._framework.keras_models import BEFORE, FunctionalGraph
from tfgc._framework.layer_settings import books

_MOST = 8
# Modules whose objects hold no models of the user.
_FOREIGN = ("keras", "tensorflow", "numpy", "builtins", "types", "functools", "abc", "threading", "logging")


def functional_of(model: Any) -> FunctionalGraph:
    """Return the functional graph of a model, or say why it has none."""
    function = keras_models.functional_graph(model)
    if function is not None:
        return function
    if keras_models.runs_graph(model):
        raise UnsupportedModelError(
            f"the Sequential model {model.name!r} is not built, so its graph is not known: start it with "
            "keras.Input(shape), or call it once on a batch"
        )
    if keras_models.has_graph(model):
        raise UnsupportedModelError(
            f"{model.name!r} has a `call` of its own, model.call = ..., which tfgc cannot read. Make it a layer of the "
            "model, or choose the large layers: tfgc.enable(model, layers=[...])"
        )
    raise UnsupportedModelError(
        f"{model.name!r} is a subclassed model ({type(model).__name__}), which has no graph of nodes to cut into "
        f"segments. {_advice(model)}"
    )


def is_patched_call(layer: keras.Layer) -> bool:
    """Return True if tfgc replaced the `call` of a layer or model."""
    return keras_models.is_patched(vars(layer).get("call"))


def replace_method(layer: keras.Layer, name: str, method: Callable) -> None:
    """Put a method in place of that of a layer or model, until `restore_methods`."""
    if name not in replaced_methods(layer):
        before = layer.__dict__.setdefault(BEFORE, {})
        before.pop(name, None)
        before.update({name: vars(layer)[name]} if name in vars(layer) else {})
    setattr(layer, name, method)


def restore_methods(layer: keras.Layer) -> None:
    """Give a layer or model back the methods that it had: those of its class, or that a user had put on the object."""
    before = vars(layer).get(BEFORE, {})
    for name in replaced_methods(layer):
        if name in before:
            setattr(layer, name, before[name])
        else:
            delattr(layer, name)
    layer.__dict__.pop(BEFORE, None)


def replaced_methods(layer: keras.Layer) -> dict[str, Callable]:
    """What tfgc put in place of methods of a layer or model: of `call`, and of the `train_step` of some models."""
    own: dict[str, Any] = {name: vars(layer).get(name) for name in ("call", "train_step")}
    return {name: method for name, method in own.items() if keras_models.is_patched(method)}


@contextlib.contextmanager
def original_methods(model: keras.Model) -> Iterator[None]:
    """Let a model and the layers in it run their original code."""
    replaced = [(layer, replaced_methods(layer)) for layer in keras_models.layers_inside(model)]
    for layer, _ in replaced:
        restore_methods(layer)
    try:
        yield
    finally:
        for layer, methods in replaced:
            for name, method in methods.items():
                replace_method(layer, name, method)


def flattenable(node: Any) -> FunctionalGraph | None:
    """The functional graph of a nested model whose nodes can replace its call, or None."""
    operation = node.operation
    if not isinstance(operation, keras.Model):
        return None
    if not type(operation).__call__.__module__.startswith("keras."):
        return None
    try:
        inner = functional_of(operation)
    except UnsupportedModelError:
        return None
    options = {k: v for k, v in node.arguments.kwargs.items() if k != "training"}
    given = node.arguments.args[0] if node.arguments.args else options.pop("inputs", None)
    if len(inner.inputs) > 1:
        try:
            keras.tree.assert_same_structure(inner.input, given)
        except (ValueError, TypeError):
            return None
    same = len(inner.inputs) == len(node.input_tensors) and all(
        t.dtype == outer.dtype and len(t.shape) == len(outer.shape) and tensor_attributes.mask_of(outer) is None
        for t, outer in zip(inner.inputs, node.input_tensors)
    )
    return inner if same and not any(v is not None for v in keras.tree.flatten(options)) else None


def _advice(model: keras.Model) -> str:
    """Say how to enable a subclassed model.

    Example:
        >>> import keras
        >>> class Outer(keras.Model):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.nets = [keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])]
        >>> _advice(Outer())
        'Enable each functional part that it holds: tfgc.enable(model.nets[0])'
    """
    paths = parts(model)
    if not paths:
        return (
            "tfgc.enable(model) plans its step at the first batch; to choose layers: tfgc.enable(model, layers=[...])"
        )
    calls = ", ".join(f"tfgc.enable({path})" for path in paths[:_MOST])
    more = "" if len(paths) <= _MOST else f", and {len(paths) - _MOST} more"
    return f"Enable each functional part that it holds: {calls}{more}"


def parts(model: keras.Model) -> list[str]:
    """The paths of the parts of a model that could be planned."""
    return [path for path, part in _walk(model) if not part.built or part.weights]


def _walk(model: keras.Model) -> Iterator[tuple[str, Any]]:
    """Paths and parts, the nearest first, without the parts inside a part."""
    seen = {id(model)}
    queue: list[tuple[str, Any]] = [("model", model)]
    for path, thing in queue:
        if thing is not model and keras_models.runs_graph(thing):
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
        own = {k: inner for k, inner in vars(thing).items() if k not in books() and not k.startswith("_self_")}
        yield from ((f".{k}", inner) for k, inner in own.items())
    elif hasattr(thing, "__dict__") and type(thing).__module__.partition(".")[0] not in _FOREIGN:
        yield from ((f".{name}", inner) for name, inner in vars(thing).items())
