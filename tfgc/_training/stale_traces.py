"""Let what was traced before a change be traced again.

Keras keeps the compiled training function of a model, and also that of a model that holds the changed one, whether as
an attribute, inside a user's wrapper, or as a global that its `train_step` reads. So every model that was
traced gets new functions: retracing costs seconds, and an old trace would be silently wrong.

A `tf.function` that a user wrote cannot be traced again. Where one was differentiated, or takes
gradients itself, with weights of the changed model, a warning names it.

Known weaknesses. Objects are found by Python's garbage collector, except those that `gc.freeze` has hidden. There is no
warning of a `tf.function` that was traced before the change and is first differentiated after it.
"""

import functools
import gc
import inspect
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfgc._errors import StaleTraceWarning, warn
from tfgc._framework import concrete_functions, isolated_traces, keras_models, private_api

_TRACED = ("train", "test", "predict")
_FUNCTION = type(tf.function(lambda: None))


def trained_with(model: keras.Model) -> list[keras.Model]:
    """Other Keras models that have a training function and weights of this one."""
    own = set(map(id, model.trainable_variables))
    others = [one for one in _instances(keras.Model)[0] if one is not model and vars(one).get("train_function")]
    return [one for one in others if not own.isdisjoint(map(id, one.trainable_variables))]


def renew(model: keras.Model, what: str, changed: Iterable[keras.Layer]) -> None:
    """Remake the functions of every Keras model after `what` changed the `call` of some layers of `model`."""
    if not _is_captured(model):
        return
    models, functions = _instances(keras.Model, _FUNCTION)
    for other in models:
        for name in _TRACED:
            if vars(other).get(f"{name}_function") is not None:
                setattr(other, f"{name}_function", None)
                # At once, since the change may come from a callback in the midst of `fit`.
                getattr(other, f"make_{name}_function")()
    inside = set(map(id, _functions_inside(changed)))
    if _stale(model, functions, inside):
        del functions
        gc.collect()  # Some may be garbage by now.
        stale = _stale(model, _instances(_FUNCTION)[0], inside)
        if stale:
            warn(_message(model, what, stale), StaleTraceWarning)


def _is_captured(model: keras.Model) -> bool:
    """Whether anything but its variables holds their handles, as does each trace that reads them."""
    # Looking at all objects takes a second where there are millions, and most models are enabled before they train.
    with tf.init_scope():
        fresh = tf.Variable(0.0)  # pyright: ignore[reportArgumentType]
        alone = max(map(_references, private_api.copies(fresh)))  # replicas, in the scope of a strategy
    parts = [part for variable in model.variables for part in private_api.copies(private_api.storage(variable))]
    return not parts or any(_references(part) > alone for part in parts)


def _references(storage: Any) -> int:
    return sys.getrefcount(storage.handle)


def _message(model: keras.Model, what: str, stale: list[Any]) -> str:
    named = " and ".join(map(_place, stale))
    made = " and ".join(f"tf.function({function.name}.python_function)" for function in stale)
    return (
        f"{what} of {model.name!r} does not reach {named}, which trained with it before: TensorFlow keeps using "
        f"the old trace. Use {made} from now on"
    )


def _stale(model: keras.Model, functions: Iterable[Any], inside: set[int]) -> list[Any]:
    """Functions that users wrote whose traces hold gradients of `model`, without those with the ids `inside`."""
    handles = {id(handle) for variable in model.variables for handle in private_api.handles(variable)}
    concerned = [f for f in functions if id(f) not in inside and not _is_ours(f.python_function)]
    return [f for f in concerned if any(_holds(trace, handles) for trace in concrete_functions.traces(f))]


def _functions_inside(changed: Iterable[keras.Layer]) -> Iterator[Any]:
    """The `call`s of changed layers and methods of their parts that are `tf.function`s: the change is around them."""
    for layer in changed:
        for part in keras_models.layers_inside(layer):
            for kind in type(part).__mro__:
                for name, value in vars(kind).items():
                    if isinstance(value, _FUNCTION) and (part is not layer or name == "call"):
                        yield from (value, value.__get__(part, kind))


def _holds(trace: Any, handles: set[int]) -> bool:
    """Whether a trace reads one of these variables and takes gradients, or was called under an eager tape."""
    if not any(id(tensor) in handles for tensor in trace.captured_inputs):
        return False
    if concrete_functions.is_differentiated(trace):
        return True
    return any(op.name.startswith(("gradient_tape/", "gradients/")) for op in trace.graph.get_operations())


def _is_ours(function: Callable) -> bool:
    """Whether Keras or tfgc made a function, and so remakes it."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    module = function.__module__ if inspect.isroutine(function) else ""
    return str(module).startswith(("keras.", "tfgc."))


def _place(function: Any) -> str:
    """The name of a `tf.function`, and where it was written."""
    code = getattr(inspect.unwrap(function.python_function), "__code__", None)
    at = "" if code is None else f" ({code.co_filename.rpartition('/')[2]}, line {code.co_firstlineno})"
    return f"tf.function {function.name!r}{at}"


def _instances(*kinds: type) -> list[list[Any]]:
    """For each class all objects of it that there are."""
    found = {below: i for i, kind in enumerate(kinds) for below in (kind, *isolated_traces.subclasses(kind))}
    objects = gc.get_objects()
    # No Python for each of them: there are hundreds of thousands.
    things = list(itertools.compress(objects, map(found.__contains__, map(type, objects))))
    return [[thing for thing in things if found[type(thing)] == i] for i in range(len(kinds))]
