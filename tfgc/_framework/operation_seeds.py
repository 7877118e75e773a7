"""Seeds of operations that draw without one, such as `tf.random.uniform(shape)` after `tf.random.set_seed`.

TensorFlow numbers those of each graph from zero: equal blocks that are functions of their own, or copies of one trace,
would all draw the same.
"""

import contextlib
from collections.abc import Iterator

from tfgc._framework import versions
from tfgc._framework.internals import context


@contextlib.contextmanager
def eager_ones_put_back() -> Iterator[None]:
    """Let what draws eagerly after this get the seeds that it would have got without what draws in here."""
    stream = None  # of a process in which no seed was set
    if context.global_seed() is not None:
        stream = versions.attribute(context.context(), "_rng")
    before = stream and stream.getstate()
    try:
        yield
    finally:
        if stream:
            stream.setstate(before)
