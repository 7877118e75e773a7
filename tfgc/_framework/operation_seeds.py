"""Seeds of operations that draw without one, such as `tf.random.uniform(shape)` after `tf.random.set_seed`.

TensorFlow numbers those of each graph from zero: equal blocks that are functions of their own, or copies of one trace,
would all draw the same.
"""

import contextlib
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf

from tfgc._framework import versions
from tfgc._framework.internals import context, random_seed

_numbers: Any = versions.attribute(random_seed, "_graph_to_seed_dict")
# By the eager stream, which `tf.random.set_seed` makes anew: how many operations have a number.
_counts: Any = weakref.WeakKeyDictionary()
# From here on a graph that is copied numbers its operations, to be told from seeds that a user gave.
_COPIED = 2**30


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


@contextlib.contextmanager
def unused() -> Iterator[None]:
    """Give back the numbers that the graph being built takes in here, where other draws stand for those with them."""
    graph = tf.compat.v1.get_default_graph()
    before = _numbers.get(graph)
    try:
        yield
    finally:
        if before is None:
            _numbers.pop(graph, None)
        else:
            _numbers[graph] = before


def numbered(graph: Any, operations: Iterable[tf.Operation]) -> list[str] | None:
    """The names of those of a graph's operations that have a number in place of a seed, in the order of these.

    None where these are not the numbers of the graph in a row: something else took one, or a user's seed is alike.
    """
    numbers = range(_COPIED, _numbers[graph])
    found = [op for op in operations if op.get_attr("seed2") in numbers]
    return [op.name for op in found] if [op.get_attr("seed2") for op in found] == [*numbers] else None
