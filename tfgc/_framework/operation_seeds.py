"""Seeds of operations that draw without one, such as `tf.random.uniform(shape)` after `tf.random.set_seed`.

TensorFlow numbers those of each graph from zero: equal blocks that are functions of their own, or copies of one trace,
would all draw the same.
"""

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfgc._framework import versions
from tfgc._framework.internals import context, random_seed

_numbers: Any = versions.attribute(random_seed, "_graph_to_seed_dict")
# By the eager stream, which `tf.random.set_seed` makes anew: how many operations have a number.
_counts: Any = weakref.WeakKeyDictionary()


class Numbers:
    """Numbers of operations where this was made: in the graph, or in all traces of eager code since a seed was set."""

    def __init__(self) -> None:
        self._all, of = _numbers, tf.compat.v1.get_default_graph()
        if tf.executing_eagerly():
            # What draws without any seed gets one of its own, and there is no stream of them.
            is_seeded = context.global_seed() is not None
            self._all, of = _counts, versions.attribute(context.context(), "_rng") if is_seeded else None
        self._of: Any = (lambda: None) if of is None else weakref.ref(of)  # What is traced there may outlive a graph.
        self._before = self.count

    @property
    def count(self) -> int:
        """How many operations have a number."""
        return 0 if (of := self._of()) is None else self._all.get(of, 0)

    @property
    def are_drawn(self) -> bool:
        """Whether an operation got one since this was made."""
        return self.count != self._before

    def put_back(self) -> None:
        """Number what is traced next as what was traced since this was made."""
        if (of := self._of()) is not None:
            self._all[of] = self._before

    @contextlib.contextmanager
    def continued(self) -> Iterator[None]:
        """Number what draws in the graph being built on from where the last one ended, as in one graph of all."""
        if (of := self._of()) is None:
            yield
            return
        graph: Any = tf.compat.v1.get_default_graph()
        _numbers[graph] = self._before  # TensorFlow traces twice what makes variables.
        if isinstance(of, tf.Graph):
            graph.seed = of.seed
        try:
            yield
        finally:
            self._all[of] = _numbers[graph]


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
