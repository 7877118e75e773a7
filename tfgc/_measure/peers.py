"""Other ways to recompute, applied as their documentation says, to measure them beside tfgc's.

`recompute_grad`: the model split by hand into eight parts, each but the last under `tf.recompute_grad`.
`RematScope ...`: the model built under `keras.RematScope` in that mode. Nothing here is used by tfgc itself.
"""

import contextlib

import keras
import tensorflow as tf

from tfgc._training import split

_PARTS = 8
# Keras's default of 1024 elements takes in nearly every layer of an image network; a million leaves the small ones.
_LARGE = 2**20
REMAT = {
    "RematScope full": {"mode": "full"},
    "RematScope activations": {"mode": "activations"},
    "RematScope larger_than": {"mode": "larger_than", "output_size_threshold": _LARGE},
    "RematScope list_of_layers": {"mode": "list_of_layers"},
}


def building(peer, build):
    """The scope to build a model under; where it wants layers named, those with weights of what `build()` gives."""
    if peer not in REMAT:
        return contextlib.nullcontext()
    settings = dict(REMAT[peer])
    if settings["mode"] == "list_of_layers":
        settings["layer_names"] = [layer.name for layer in build().layers if layer.weights]
        keras.utils.clear_session()
        keras.utils.set_random_seed(0)
    return keras.RematScope(**settings)


def called(peer, model):
    """What a training step calls in place of `model`."""
    return _split_by_hand(model) if peer == "recompute_grad" else model


def _split_by_hand(model):
    parts = split.split(model, _PARTS)

    def call(x, training=None):
        for part in parts[:-1]:
            flat = tf.nest.flatten(x)
            run = lambda *tensors, part=part, x=x: part(tf.nest.pack_sequence_as(x, tensors), training=training)
            x = tf.recompute_grad(run)(*flat)
        return parts[-1](x, training=training)

    return call


# A difference that is no rounding, where plain steps do not differ more among themselves.
_ALLOWED = 1e-3


def wrong(update, references, weights):
    """What of the first step's update is as in none of the plain ones: `gradients`, `states`, or nothing.

    Allowed is what rounding may do: 0.1 %, or twice what the plain steps differ by from the first of them.

    Args:
        update: Mapping from a variable's path to what the step added to it.
        references: Such mappings of plain steps that differ by rounding alone.
        weights: Paths of the variables that are trained.
    """
    found = []
    for what, paths in (("gradients", weights), ("states", [path for path in update if path not in weights])):
        if not paths:
            continue
        spread = max(_difference(references[0], other, paths) for other in references)
        if min(_difference(one, update, paths) for one in references) > max(_ALLOWED, 2 * spread):
            found.append(what)
    return tuple(found)


def _difference(expected, given, paths):
    """The norm of the difference over the norm of what is expected."""
    flat = lambda update: tf.concat([tf.reshape(tf.cast(update[path], "float64"), [-1]) for path in paths], 0)
    scale = tf.norm(flat(expected))
    return float(tf.norm(flat(given) - flat(expected)) / scale) if scale else float(tf.norm(flat(given)) > 0)
