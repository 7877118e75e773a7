"""Other ways to recompute, applied as their documentation says, to compare them with tfgc.

`recompute_grad`: the model split by hand into eight parts, each but the last under `tf.recompute_grad`.
`RematScope ...`: the model built under `keras.RematScope` in that mode. Nothing here is used by tfgc itself.
"""

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
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


def build_scope(peer: str | None, build: Callable[[], keras.Model]) -> contextlib.AbstractContextManager[Any]:
    """The scope to build a model under. One that takes names of layers gets those with weights in `build()`."""
    if peer is None or peer not in REMAT:
        return contextlib.nullcontext()
    settings: dict[str, Any] = dict(REMAT[peer])
    if settings["mode"] == "list_of_layers":
        settings["layer_names"] = [layer.name for layer in build().layers if layer.weights]
        keras.utils.clear_session()
    return keras.RematScope(**settings)


def wrap_call(peer: str | None, model: keras.Model) -> Callable[..., Any]:
    """What a training step calls instead of `model`."""
    if peer != "recompute_grad":
        return model
    parts = split.split(model, _PARTS)

    def run(part: keras.Model, structure: Any, training: bool | None, *tensors: Any) -> Any:
        return part(tf.nest.pack_sequence_as(structure, tensors), training=training)

    def call(x: Any, training: bool | None = None) -> Any:
        for part in parts[:-1]:
            x = tf.recompute_grad(functools.partial(run, part, x, training))(*tf.nest.flatten(x))
        return parts[-1](x, training=training)

    return call


def differing_parts(
    update: Mapping[str, Any], references: Sequence[Mapping[str, Any]], weights: Sequence[str]
) -> tuple[str, ...]:
    """Which parts of the first update differ from every plain run: `gradients`, `states`, or none.

    An update is what the step added to each variable, by path. Rounding is allowed for: 0.1 %, or twice the largest
    difference among `references`, plain steps that differ by rounding alone. `weights` are the paths that are trained.
    """
    found = []
    for what, paths in (("gradients", weights), ("states", [path for path in update if path not in weights])):
        if not paths:
            continue
        spread = max(difference(references[0], other, paths) for other in references)
        # So written, NaN differs.
        if not any(difference(one, update, paths) <= max(1e-3, 2 * spread) for one in references):
            found.append(what)
    return tuple(found)


def difference(expected: Mapping[str, Any], given: Mapping[str, Any], paths: Sequence[str]) -> float:
    """The norm of the difference over the norm of what is expected."""
    one, other = (np.concatenate([np.ravel(update[path]) for path in paths]) for update in (expected, given))
    scale = np.linalg.norm(one)
    return float(np.linalg.norm(other - one) / scale) if scale else float(np.linalg.norm(other) > 0)
