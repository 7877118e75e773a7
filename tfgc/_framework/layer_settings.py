"""What the code of layers depends on besides its arguments, as a key that changes when that does.

A trace freezes the Python that a layer ran: whether a layer is frozen, its dtype policy, a dropout rate, an activation,
LoRA. Plain eager code sees each as it is now, so what was traced is looked up by them.

Lists and arrays of a few numbers are compared by value, and whether anything else is another thing. Known weakness:
what is inside of objects, and of other lists and dicts, is not compared, and only the attributes are that the layer had
at its first call. Nor are a model's objects, since `compile` and `fit` exchange them, and those of Keras's own layers
except `Lambda` and their variables.
"""

import contextlib
import functools
from collections.abc import Iterable, Iterator
from typing import Any

import keras

from tfgc._framework import keras_models
from tfgc._framework.layer_values import (
    CODE,
    PLAIN,
    are_numbers,
    by_attributes,
    comparable,
    is_constant,
    leaves,
)


class Settings:
    """The settings of layers that are called, and of all layers inside them."""

    def __init__(self, layers: Iterable[keras.Layer]) -> None:
        self._layers = tuple({id(layer): layer for layer in layers}.values())
        self._known: dict[keras.Layer, list[str]] = {}
        self._held: dict[keras.Layer, list[tuple[str, keras.Variable]]] = {}

    def __call__(self) -> tuple:
        """A hashable value."""
        return tuple([self._of(layer) for layer in self])

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Leave out from now on what layers change themselves while they run in here, such as a counter of calls."""
        before = [(layer, self._names(layer), self._values(layer), self._exchanged(layer)) for layer in self]
        yield
        for layer, names, values, exchanged in before:
            if own := {name for name, _ in {*exchanged} ^ {*self._exchanged(layer)}}:
                self._held[layer] = [(name, variable) for name, variable in self._held[layer] if name not in own]
            self._known[layer] = [n for n, old, new in zip(names, values, self._values(layer)) if old == new]

    def __iter__(self) -> Iterator[keras.Layer]:
        for layer in self._layers:
            yield from keras_models.layers_inside(layer)

    def _of(self, layer: keras.Layer) -> tuple:
        # Of a layer that holds others the user may exchange one; Keras's own layers keep theirs.
        inside = () if _of_keras(type(layer).__module__) else tuple(_held(layer))
        regularizer = layer.activity_regularizer
        penalty = None if regularizer is None else by_attributes(regularizer)
        around = layer.trainable, layer.dtype_policy.name, vars(layer).get("call"), penalty, inside
        return around, self._values(layer), self._exchanged(layer)

    def _exchanged(self, layer: keras.Layer) -> tuple:
        """The attributes that held a Keras variable when the layer was first seen built, and what they hold instead."""
        # Names of variables alone, not the variables: layers that do the same with their own have equal settings.
        if layer not in self._held:
            if not layer.built:
                return ()
            mine = ((name, value) for name, value in vars(layer).items() if _may_be_set(name))
            self._held[layer] = [(name, value) for name, value in mine if isinstance(value, keras.Variable)]
        own = vars(layer)
        return tuple([(n, comparable(own.get(n))) for n, held in self._held[layer] if own.get(n) is not held])

    def _names(self, layer: keras.Layer) -> list[str]:
        if layer not in self._known:
            own: dict[str, Any] = {}
            for kind in reversed([kind for kind in type(layer).__mro__ if not _of_keras(kind.__module__)]):
                own |= {name: value for name, value in vars(kind).items() if not isinstance(value, CODE)}
            module = type(layer).__module__
            names = {n for n, v in (own | vars(layer)).items() if _is_setting(n, v)}
            if isinstance(layer, keras.layers.Lambda) or not (isinstance(layer, keras.Model) or _of_keras(module)):
                names |= {n for n, v in vars(layer).items() if _may_be_set(n) and is_constant(v)}
            self._known[layer] = sorted(names)
        return self._known[layer]

    def _values(self, layer: keras.Layer) -> tuple:
        own = vars(layer)
        # Some are attributes of its class, or gone.
        values = (own[name] if name in own else getattr(layer, name, None) for name in self._names(layer))
        return tuple(map(comparable, values))


def _held(layer: keras.Layer) -> Iterator[keras.Layer]:
    """The layers that a layer holds, as its code would find them now."""
    for name, value in vars(layer).items():
        if isinstance(value, keras.Layer):
            yield value
        elif isinstance(value, (list, tuple, dict)) and name not in books():
            yield from (inner for inner in leaves(value) if isinstance(inner, keras.Layer))


def _is_setting(name: str, value: Any) -> bool:
    return (isinstance(value, PLAIN) or are_numbers(value)) and _may_be_set(name)


def _may_be_set(name: str) -> bool:
    """Whether an attribute of that name is the layer's, and none in which Keras or TensorFlow keep their books."""
    return name not in books() and not name.startswith(("__", "_self_"))


@functools.cache
def _of_keras(module: str) -> bool:
    return module.startswith(("keras.", "tensorflow.", "builtins"))


@functools.cache
def books() -> frozenset[str]:
    """Attributes in which Keras keeps its books."""
    return frozenset(["call", *vars(keras.Layer(name="books")), *vars(keras.Model(name="books"))])
