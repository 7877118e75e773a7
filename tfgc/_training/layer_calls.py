"""Recompute chosen layers of any model, subclassed ones included.

A chosen layer's `call` is replaced on that layer object; what Keras does around it (masks, autocast, regularizers,
building) stays as it is. A chosen layer inside another one, or in what is recomputed, is a part of that: no third run.
"""

import contextlib
import functools
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import keras
import tensorflow as tf

from tfgc._errors import UnsupportedModelError
from tfgc._framework import keras_models, model_checks, private_api, whole_steps
from tfgc._framework.layer_settings import books
from tfgc._framework.layer_values import leaves
from tfgc._pairs import joint
from tfgc._pairs.code import Code
from tfgc._pairs.pairs import Pairs
from tfgc._tracing import functional_graphs

# The layers that a model was enabled by, which may leave it, and what replaces their `call`.
_Replaced: TypeAlias = list[tuple[weakref.ref, weakref.ref]]
_replaced: weakref.WeakKeyDictionary[keras.Layer, _Replaced] = weakref.WeakKeyDictionary()


class LayerCall:
    """Replaces the `call` of a layer; inference, which is `training=False` outside of all tapes, runs the original.

    Under a tape a layer may train although Keras says False: a `Dropout` that is called without `training` sets its
    default, False, for all calls after it, as in the `fit` of a model whose `call` takes no `training`.
    """

    is_patched_call = True

    def __init__(self, layer: keras.Layer) -> None:
        self._layer, self._original = weakref.ref(layer), layer.call
        functools.update_wrapper(self, self._original)
        self._name = f"layer {layer.path or layer.name!r}"
        self._pairs = Pairs(self._traced, self._name, Code(layer))

    def _traced(self, *args: Any, **kwargs: Any) -> Any:
        made, layer = self._original(*args, **kwargs), self._layer()
        if joint.is_here() and layer is not None and _holds_tensors(layer):
            raise UnsupportedModelError("it puts a tensor aside in an attribute, where others find it")
        return made

    @property
    def obstacle(self) -> str | None:
        """Why the call that came last ran the original."""
        return self._pairs.obstacle

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if joint.is_here() or whole_steps.is_here() or not private_api.could_train():
            return self._original(*args, **kwargs)
        model_checks.refuse_tf1_graph(self._name)
        if model_checks.is_empty(args, kwargs):
            return self._original(*args, **kwargs)
        return self._pairs(*args, **kwargs)


def _holds_tensors(layer: keras.Layer) -> bool:
    """Whether a layer, or one inside of it, holds a tensor of the graph being built, which is no result of its call."""
    here = tf.compat.v1.get_default_graph()
    held = ([v for k, v in vars(inner).items() if k not in books()] for inner in keras_models.layers_inside(layer))
    return any(tf.is_symbolic_tensor(x) and x.graph is here for values in held for x in leaves(values))


def replace_calls(model: keras.Model, layers: Sequence[keras.Layer]) -> None:
    """Let each of these layers of `model` recompute its inside from now on."""
    calls = [LayerCall(layer) for layer in layers]
    for layer, call in zip(layers, calls):
        functional_graphs.replace_method(layer, "call", call)
    _replaced[model] = [(weakref.ref(layer), weakref.ref(call)) for layer, call in zip(layers, calls)]


def restore_calls(model: keras.Model) -> set[keras.Layer]:
    """Give a model and all its layers back their original methods; return those whose `call` was another one."""
    changed = restore_parts(model)
    if functional_graphs.is_patched_call(model):
        functional_graphs.restore_methods(model)
        changed.add(model)
    return changed


def restore_parts(model: keras.Model) -> set[keras.Layer]:
    """Do the same for the layers inside of a model, and not for the model itself."""
    replaced = _taken(model).get(model)
    gone = [] if replaced is None else [(layer(), call()) for layer, call in replaced]
    gone = [layer for layer, call in gone if layer is not None and call is not None and vars(layer).get("call") == call]
    changed = {part for part in [*keras_models.layers_inside(model), *gone] if functional_graphs.is_patched_call(part)}
    changed.discard(model)
    for layer in changed:
        functional_graphs.restore_methods(layer)
    return changed


@contextlib.contextmanager
def restored_afterwards(model: keras.Model) -> Iterator[None]:
    """Disable a model in here; afterwards it is enabled again if it was."""
    with contextlib.ExitStack() as stack:
        stack.callback(_replaced.update, _taken(model))
        stack.enter_context(functional_graphs.original_methods(model))
        stack.callback(restore_calls, model)
        yield


def _taken(model: keras.Model) -> dict[keras.Layer, _Replaced]:
    """What a model, and models inside of it, were enabled by, which is noted no longer."""
    return {layer: _replaced.pop(layer) for layer in keras_models.layers_inside(model) if layer in _replaced}
