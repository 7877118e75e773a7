"""Seeds of operations that draw without one, such as `tf.random.uniform(shape)` after `tf.random.set_seed`.

TensorFlow numbers those of each graph from zero: equal blocks that are functions of their own would all draw the same.
"""

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfgc._framework import versions

try:
    from tensorflow.python.eager import context
    from tensorflow.python.framework import random_seed
except ImportError as error:
    raise versions.unsupported(error) from error

_numbers: Any = versions.attribute(random_seed, "_graph_to_seed_dict")
# By the eager stream, which `tf.random.set_seed` makes anew: how many operations have a number.
_counts: Any = weakref.WeakKeyDictionary()


@contextlib.contextmanager
def continued() -> Iterator[None]:
    """Number what draws in the graph being built on from where the last one ended, as in one graph of all."""
    if context.global_seed() is None:  # What draws gets a seed of its own, and there is no stream of them.
        yield
        return
    graph, stream = tf.compat.v1.get_default_graph(), versions.attribute(context.context(), "_rng")
    _numbers[graph] = _counts.get(stream, 0)
    try:
        yield
    finally:
        _counts[stream] = _numbers[graph]
