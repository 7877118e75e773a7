"""What an optimizer's slots take, read from a copy that is built in a graph, where variables take no memory."""

import collections
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, TypeAlias

import keras
import numpy as np
import tensorflow as tf

from tfgc._core.recently_used import RecentlyUsed

Kind: TypeAlias = tuple[str, tuple[int, ...], str]  # name, shape and dtype of a weight
_PROBES: tuple[Kind, ...] = tuple(("weight", shape, "float32") for shape in ((3,), (5, 7), (2, 3, 5, 7)))
_known: RecentlyUsed[Any, int] = RecentlyUsed(64)


def of(optimizer: keras.Optimizer, trained: Sequence[keras.Variable]) -> int:
    """Bytes that an optimizer that is not built makes for weights; the optimizer stays as it is.

    Two slots for each weight, as Adam has, if it cannot be made again from its config.
    """
    kinds = collections.Counter((variable.name, tuple(variable.shape), variable.dtype) for variable in trained)
    if not kinds:
        return 0
    try:
        key = settings(optimizer), frozenset(kinds.items())
        found = _known.get(key)
        if found is None:
            _known[key] = found = _read(optimizer, kinds)
        return found
    except Exception:  # Constructors and configs of other people's classes may do anything.
        return 2 * variable_bytes(trained)


def settings(optimizer: keras.Optimizer) -> Hashable:
    """What is equal for optimizers that make the same slots and updates."""
    return type(optimizer), repr({**optimizer.get_config(), "name": None})


def variable_bytes(variables: Iterable[keras.Variable]) -> int:
    """Bytes that variables take."""
    return sum(int(np.prod(v.shape)) * tf.as_dtype(v.dtype).size for v in variables)


def _read(optimizer: keras.Optimizer, kinds: collections.Counter[Kind]) -> int:
    made = _built(optimizer, *_PROBES)
    counts = {sum(tuple(v.shape) == shape for v in made) for _, shape, _ in _PROBES}
    once = variable_bytes(v for v in made if not v.shape)
    slots = next(iter(counts))
    if len(counts) == 1 and len(made) == slots * len(_PROBES) + sum(not v.shape for v in made):
        sizes = (n * int(np.prod(shape)) * tf.as_dtype(dtype).size for (_, shape, dtype), n in kinds.items())
        return once + slots * sum(sizes)
    # Slots of other shapes (Adafactor), or another number of them for some weights (Muon).
    first = next(iter(kinds))
    once = 2 * variable_bytes(_built(optimizer, first)) - variable_bytes(_built(optimizer, first, first))
    return once + sum(n * (variable_bytes(_built(optimizer, kind)) - once) for kind, n in kinds.items())


def _built(optimizer: keras.Optimizer, *kinds: Kind) -> list[keras.Variable]:
    """What a copy makes in `build` for such weights."""
    copy = type(optimizer).from_config(optimizer.get_config())
    before = len(copy.variables)
    with tf.Graph().as_default():
        copy.build([keras.Variable("zeros", shape, dtype, name=name) for name, shape, dtype in kinds])
    return copy.variables[before:]
