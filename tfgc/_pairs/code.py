"""What the Python code of a function reads besides its arguments, as a key that changes when that does.

A trace freezes what the code read: layers and their settings, numbers, other functions. Where all that is known, a
call like an earlier one runs by its trace. What is not known, such as an attribute of an object of the user's, may be
another thing next time: such a function is traced at each call.
"""

import dis
import functools
import types
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfgc._framework.layer_settings import Settings
from tfgc._framework.layer_values import PLAIN, are_numbers, comparable, leaves

_OF_MODULES = ("_self_", "_name", "_scope_name", "_obj_reference")  # TensorFlow's own attributes of a `tf.Module`
_MODULES = ("tensorflow", "keras", "numpy", "math", "tfgc")


class Code:
    """The code of a function."""

    def __init__(self, fn: Callable) -> None:
        self._fn = fn
        self._settings: dict[tuple[int, ...], Settings] = {}

    def read(self) -> tuple[Hashable, Settings | None, keras.Layer | None]:
        """A key of what it reads now, None where that is not known; the settings of its layers, and the first layer."""
        layers: dict[int, keras.Layer] = {}
        key = _key(self._fn, layers, set())
        if not layers:
            return key, None, None
        if tuple(layers) not in self._settings:
            self._settings.clear()
            self._settings[tuple(layers)] = Settings(layers.values())
        return key, self._settings[tuple(layers)], next(iter(layers.values()))


def _key(value: Any, layers: dict[int, keras.Layer], seen: set[int]) -> Hashable:
    """A key of a value that code reads, and the layers in it; None where it is not known what that depends on."""
    if isinstance(value, keras.Layer):
        layers[id(value)] = value
        return id(value), type(value)
    if isinstance(value, (tf.Variable, keras.Variable, tf.types.experimental.PolymorphicFunction)):
        return comparable(value)
    if isinstance(value, types.ModuleType):
        return value.__name__ if value.__name__.partition(".")[0] in _MODULES else None
    if isinstance(value, types.FunctionType | types.MethodType | functools.partial):
        if id(value) in seen:
            return "again"
        seen.add(id(value))
        parts = [_key(part, layers, seen) for part in _parts(value)]
        code = getattr(value, "__code__", None)
        return None if None in parts else (code, *parts)
    if isinstance(value, types.BuiltinFunctionType | type):
        module = getattr(value, "__module__", None) or ""
        is_known = isinstance(value, type) or module.partition(".")[0] in (*_MODULES, "builtins")
        return value if is_known else None
    if isinstance(value, PLAIN) or are_numbers(value):
        return type(value), comparable(value)
    if isinstance(value, tf.Module) and id(value) in seen:
        return id(value)
    if isinstance(value, tf.Module):
        seen.add(id(value))
        value = (*_attributes(value), *_methods(type(value)))
    if isinstance(value, tuple | list | dict):
        parts = [_key(part, layers, seen) for part in leaves(value, keys=True)]
        return None if None in parts else tuple(parts)
    return None


def _attributes(module: tf.Module) -> Iterator[Any]:
    """The names and values that an object was given, without what TensorFlow keeps in it."""
    yield type(module)
    for name, value in vars(module).items():
        if not name.startswith(_OF_MODULES):
            yield from (name, value)


@functools.lru_cache(maxsize=1024)
def _methods(kind: type) -> tuple[Any, ...]:
    """The functions of a class, but for those of TensorFlow's."""
    kinds = [each for each in kind.__mro__ if each.__module__.partition(".")[0] not in (*_MODULES, "builtins")]
    found = (value for each in kinds for name, value in vars(each).items() if name != "__init__")
    return tuple(getattr(value, "fget", getattr(value, "__func__", value)) for value in found if _is_code(value))


def _is_code(value: Any) -> bool:
    return isinstance(value, types.FunctionType | property | staticmethod | classmethod)


def _parts(value: Any) -> Iterator[Any]:
    """What a function is made of and what its code reads."""
    if isinstance(value, functools.partial):
        yield from (value.func, *value.args, *value.keywords.values())
    elif isinstance(value, types.MethodType):
        yield from (value.__self__, value.__func__)
    elif (value.__module__ or "").partition(".")[0] not in _MODULES or hasattr(value, "__wrapped__"):
        # Those of a library do not change.
        yield from [value.__wrapped__] if hasattr(value, "__wrapped__") else []
        yield from value.__defaults__ or ()
        yield from (value.__kwdefaults__ or {}).values()
        for cell in value.__closure__ or ():
            yield cell.cell_contents
        for name in _globals(value.__code__):
            if name in value.__globals__:
                yield value.__globals__[name]


@functools.lru_cache(maxsize=1024)
def _globals(code: types.CodeType) -> tuple[str, ...]:
    """The names of globals that code reads, in functions inside of it, too."""
    names = [each.argval for each in dis.get_instructions(code) if each.opname in ("LOAD_GLOBAL", "LOAD_NAME")]
    inner = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return tuple(dict.fromkeys([*names, *(name for each in inner for name in _globals(each))]))
