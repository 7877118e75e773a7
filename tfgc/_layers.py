"""Recompute chosen layers of any model, subclassed ones included.

A chosen layer's `call` is replaced on that layer object; what Keras does around it
(masks, autocast, activity regularizers, building) stays as it is. A chosen layer
inside of another one that is chosen, or inside of anything that is recomputed, is a part
of that: nothing runs three times.
"""

import functools

import keras

from tfgc import _context, _functional, _trace
from tfgc._block import Block
from tfgc._errors import OptionError, near


class LayerCall:
    """Stands in for the `call` of a layer; an explicit or surrounding `training=False` runs that one."""

    stands_in = True

    def __init__(self, layer, *, wrap=None, compile_segments=True, check_replay=False):
        self._original = original = layer.call
        functools.update_wrapper(self, original)
        run = original
        if check_replay:

            def run(*args, **kwargs):
                made = original(*args, **kwargs)
                _functional.note(layer.path or layer.name, keras.tree.flatten(made))
                return made

        trainable = lambda: tuple(inner.trainable for inner in layer._flatten_layers())
        name = f"layer {layer.path or layer.name!r}"
        self._block = Block(run, name=name, compiled=compile_segments, wrap=wrap, settings=trainable, loose=True)

    def __call__(self, *args, **kwargs):
        if _context.is_inference() or _context.in_stateless_scope():
            return self._original(*args, **kwargs)
        return self._block(*args, **kwargs)


def choose(model, chosen):
    """Return the layers of `model` that are meant: layer objects, names (every layer so named) or paths."""
    if isinstance(chosen, str | keras.Layer):
        raise OptionError(f"layers={chosen!r}: give a list of layers or of their names")
    parts = [layer for layer in model._flatten_layers() if not isinstance(layer, keras.layers.InputLayer)]
    # Before it is built a layer has no path.
    known = sorted({name for layer in parts for name in (layer.name, layer.path) if name})
    found = []
    for wanted in chosen:
        if isinstance(wanted, str):
            meant = [layer for layer in parts if wanted in (layer.name, layer.path)]
        else:
            meant = [layer for layer in parts if layer is wanted]
        if not meant:
            raise OptionError(f"layers: {model.name!r} has no layer {wanted!r}{near(wanted, known)}")
        for layer in meant:
            if hasattr(layer, "reset_dropout_mask") and (layer.dropout or layer.recurrent_dropout):
                raise OptionError(f"layers: {layer.name!r} is a cell whose RNN holds its dropout masks: name the RNN")
        found += [layer for layer in meant if layer not in found]
    if not found:
        raise OptionError("layers=[]: name at least one layer to recompute")
    return found


def replace_calls(layers, **how):
    """Let each layer recompute its inside from now on."""
    calls = [LayerCall(layer, **how) for layer in layers]
    for layer, call in zip(layers, calls):
        layer.call = call


def restore_calls(model):
    """Give a model and every layer of it their own `call` back; return whether there was anything to undo."""
    changed = [layer for layer in model._flatten_layers() if _trace.stands_in(layer)]
    for layer in changed:
        del layer.call
    return bool(changed)
