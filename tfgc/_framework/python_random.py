"""The streams of Python's `random` and NumPy's global generator, which some layers choose by (Keras's AugMix).

A trace draws from them, too: after a trace the streams are rewound, and a second run draws the same numbers as the
first.
"""

import contextlib
import pickle
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tfgc._framework import keras_state


def state() -> tuple[Any, bytes]:
    """Where both streams are; equal states are equal values."""
    return random.getstate(), pickle.dumps(np.random.get_state(legacy=False))


def rewind(start: tuple[Any, bytes]) -> None:
    """Set both streams back to a `state`."""
    own, numpy = start
    random.setstate(own)
    np.random.set_state(pickle.loads(numpy))


@contextlib.contextmanager
def streams_put_back(unless: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Put the streams of Python and NumPy back after a trace that draws from them, or lets Keras seed its generator.

    What is drawn to build layers is not drawn again: `unless` is asked afterwards.
    """
    start, generator = state(), keras_state.global_seed()
    try:
        yield
    finally:
        if (state() != start or keras_state.global_seed() is not generator) and not unless():
            rewind(start)
            keras_state.set_global_seed(generator)
