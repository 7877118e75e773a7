"""What attributes of layers hold, in lists and dictionaries, too, and how what counts as a setting is compared."""

import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfgc._framework import keras_models

CODE = (types.FunctionType, types.BuiltinFunctionType, type)
PLAIN = (bool, int, float, str, type(None), np.generic, *CODE)
_MOST_NUMBERS = 64  # of a list or an array that is compared by value


def leaves(value: Any, keys: bool = False) -> Iterator[Any]:
    """What is in a structure of lists, tuples and dictionaries, as they are ordered, with or without the keys."""
    # Unlike `keras.tree.flatten`, it takes keys that cannot be sorted: Keras holds dictionaries by layers.
    if isinstance(value, dict):
        value = [*value, *value.values()] if keys else value.values()
    elif not isinstance(value, (list, tuple)):
        yield value
        return
    for item in value:
        yield from leaves(item, keys)


def plain_variables(model: keras.Model) -> list[tf.Variable]:
    """The variables of TensorFlow's own that layers hold, which Keras does not count among its variables."""
    held = (leaves(vars(layer)) for layer in keras_models.layers_inside(model))
    return [value for values in held for value in values if isinstance(value, tf.Variable)]


def holders(layers: Iterable[keras.Layer], tensors: Iterable[Any]) -> Callable[[], bool] | None:
    """What says whether attributes of the layers hold these tensors still; None where one is in none of them now."""
    attributes: list[tuple[Any, str]] = [(vars(layer), name) for layer in layers for name in vars(layer)]
    found: list[tuple[Any, str, Any]] = []
    for tensor in tensors:
        place = next((place for place in attributes if _is_in(tensor, *place)), None)
        if place is None:
            return None
        found.append((*place, tensor))
    return lambda: all(_is_in(tensor, own, name) for own, name, tensor in found)


def _is_in(tensor: Any, own: Any, name: str) -> bool:
    return any(leaf is tensor for leaf in leaves(own.get(name)))


def are_numbers(value: Any) -> bool:
    """Whether a value is a list, a tuple or an array of a few numbers or names."""
    if isinstance(value, np.ndarray):
        return value.size <= _MOST_NUMBERS and value.dtype != object
    few = isinstance(value, (list, tuple)) and len(value) <= _MOST_NUMBERS
    return few and all(isinstance(x, PLAIN) for x in value)


def is_constant(value: Any) -> bool:
    """Whether a trace may hold what a value is now: layers are compared apart, and it reads weights and floats anew."""
    return not isinstance(value, (keras.Layer, keras.Variable)) and not any(map(_is_differentiable, leaves(value)))


def _is_differentiable(value: Any) -> bool:
    is_plain = tf.is_tensor(value) and not isinstance(value, (tf.Variable, keras.Variable))
    return is_plain and (value.dtype.is_floating or value.dtype.is_complex)


def comparable(value: Any) -> Any:
    """What is hashable and equal for equal plain values, and lists and arrays of numbers; else for the same thing."""
    if isinstance(value, PLAIN):
        return value
    if not are_numbers(value):
        return _Same(value)
    return (value.shape, str(value.dtype), value.tobytes()) if isinstance(value, np.ndarray) else tuple(value)


def by_attributes(thing: Any) -> Any:
    """What is equal for objects of one type with equal attributes."""
    own = getattr(thing, "__dict__", None)
    if isinstance(thing, CODE) or own is None:
        return comparable(thing)
    return type(thing), tuple((name, comparable(value)) for name, value in own.items())


class _Same:
    """Equal to what stands for the very same thing, which it keeps alive only if that takes no weak references."""

    __slots__ = ("_id", "_thing")

    def __init__(self, thing: Any) -> None:
        self._id = id(thing)
        try:
            self._thing: Callable[[], Any] = weakref.ref(thing)
        except TypeError:
            self._thing = lambda: thing

    def __hash__(self) -> int:
        return self._id

    def __eq__(self, other: object) -> bool:
        thing = self._thing()
        return thing is not None and isinstance(other, _Same) and thing is other._thing()
