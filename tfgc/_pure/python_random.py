"""The streams of Python's `random` and NumPy's global generator, which some layers choose by (Keras's AugMix).

A trace draws from them, too: what looks at a function gives back what it took, and a second run draws what the first
did.
"""

import contextlib
import pickle
import random

import numpy as np


def state():
    """Where both streams are; equal states are equal values."""
    return random.getstate(), pickle.dumps(np.random.get_state(legacy=False))


@contextlib.contextmanager
def drawn_from(start):
    """Draw from `start` on inside, and afterwards from where the streams are now."""
    now = state()
    rewind(start)
    try:
        yield
    finally:
        rewind(now)


def rewind(start):
    own, numpy = start
    random.setstate(own)
    np.random.set_state(pickle.loads(numpy))
