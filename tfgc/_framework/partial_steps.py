"""Keras's optimizers in a part of a step: an update of some of the weights."""

import contextlib
from collections.abc import Iterator
from typing import Any

import keras

from tfgc._framework.replaced import replaced
from tfgc._framework.versions import attribute, unsupported

# What takes all gradients of a step. An optimizer that has its own may look at several of them, or, as Nadam does,
# write once a step what all updates read.
_OF_ALL = ("apply_gradients", "apply", "_backend_apply_gradients", "_backend_update_step", "_clip_gradients")


def own_method_of_all(optimizer: keras.Optimizer) -> str | None:
    """A method by which this optimizer, other than Keras's base class, takes all gradients of a step; None without."""
    for name in _OF_ALL:
        if getattr(type(optimizer), name, None) is not attribute(keras.Optimizer, name):
            return name
    return None


def asks_for_its_rate(optimizer: keras.Optimizer) -> bool:
    """Whether the learning rate comes from a Python function, which may give another one at each call."""
    rate = attribute(optimizer, "_learning_rate")
    return callable(rate) and not isinstance(rate, keras.optimizers.schedules.LearningRateSchedule)


@contextlib.contextmanager
def updating(optimizer: keras.Optimizer) -> Iterator[None]:
    """Let the one call of `optimizer.apply` in here update some weights of a step that another call ends."""
    counted: list[Any] = []
    # It counts no iteration, so that all weights see the same number, and averages no weights.
    with replaced(optimizer.iterations, "assign_add", counted.append), replaced(optimizer, "use_ema", False):
        yield
    if len(counted) != 1:
        raise unsupported("Optimizer.apply does not count by one call of iterations.assign_add")
