"""The streams of Python's `random` and NumPy's global generator, which some layers choose by (Keras's AugMix).

A trace draws from them, too: after a trace the streams are rewound, and a second run draws the same numbers as the
first.
"""

import contextlib
import pickle
import random
from collections.abc import Iterator
from typing import Any

import numpy as np


def state() -> tuple[Any, bytes]:
    """Where both streams are; equal states are equal values."""
    return random.getstate(), pickle.dumps(np.random.get_state(legacy=False))


@contextlib.contextmanager
def drawn_from(start: tuple[Any, bytes]) -> Iterator[None]:
    """Draw from `start` on inside, and afterwards from where the streams are now."""
    now = state()
    rewind(start)
    try:
        yield
    finally:
        rewind(now)


def rewind(start: tuple[Any, bytes]) -> None:
    """Set both streams back to a `state`."""
    own, numpy = start
    random.setstate(own)
    np.random.set_state(pickle.loads(numpy))
