"""Run each layer twice from the same state, to find those that do not repeat themselves."""

import contextlib

import numpy as np
import tensorflow as tf

from tfgc._errors import one_line
from tfgc._framework import private_api
from tfgc._pure import functional, side_effects, tensor_packing


@contextlib.contextmanager
def check_determinism(layers):
    """While this is open, every call of `layers`, a mapping from names, is tried twice.

    Yields:
        A set of the names of layers whose two runs differed, in their results, new
        states or gradients; and a mapping from those that cannot be run twice to the reason.
    """
    unrepeatable, kept, before = set(), {}, {}
    for name, layer in layers.items():
        before[layer] = vars(layer).get("call")
        layer.call = _probe(layer.call, name, unrepeatable, kept)
    try:
        yield unrepeatable, kept
    finally:
        for layer, call in before.items():
            del layer.call
            if call is not None:
                layer.call = call


def _probe(original, name, unrepeatable, kept):
    def call(*args, **kwargs):
        if private_api.in_stateless_scope():
            return original(*args, **kwargs)
        packing = tensor_packing.Packing((args, kwargs))
        tensors = packing.take_tensors()
        try:
            effects = side_effects.discover(original, packing)
        except Exception as error:  # The plain call that follows raises what is the user's own mistake.
            kept[name] = f"it cannot be traced ({one_line(error)})"
            return original(*args, **kwargs)
        if effects.obstacle is not None:
            kept[name] = effects.obstacle
        if effects.obstacle is not None or effects.draws:  # Stored draws stand in for drawing in a traced run alone.
            return original(*args, **kwargs)
        values = [tf.convert_to_tensor(variable.value) for variable in effects.reads]
        first, second = (_outcome(original, packing, tensors, effects, values) for _ in range(2))
        if len(first) != len(second) or not all(map(_same, first, second)):
            unrepeatable.add(name)
        return original(*args, **kwargs)

    return call


def _outcome(fn, packing, tensors, effects, values):
    """Everything that one run of `fn` gives: results, losses, states, and gradients for ones."""
    with tf.GradientTape() as tape:
        tape.watch([t for t in [*tensors, *values] if t.dtype.is_floating or t.dtype.is_complex])
        run = functional.run(fn, packing, tensors, effects.reads, values)
    targets = [run.tensors[i] for i in run.differentiable]
    gradients = tape.gradient(targets, [*tensors, *values]) if targets else []
    return [*run.tensors, *(tf.convert_to_tensor(g) for g in gradients if g is not None)]


def _same(first, second):
    if first.dtype != second.dtype or first.shape != second.shape:
        return False
    return first.dtype in (tf.variant, tf.resource) or np.array_equal(
        first.numpy(), second.numpy(), equal_nan=first.dtype.is_floating
    )
