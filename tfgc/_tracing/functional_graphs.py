"""Which models have a graph of layers, and which of them tfgc has changed."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras

from tfgc._errors import UnsupportedModelError
from tfgc._framework import keras_models, tensor_attributes
from tfgc._framework.keras_models import BEFORE, FunctionalGraph


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
        "segments. tfgc.enable(model) plans its step at the first batch; to choose layers: tfgc.enable(model, "
        "layers=[...])"
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
