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


def count() -> int:
    """How many operations have a number."""
    return 0 if context.global_seed() is None else _counts.get(versions.attribute(context.context(), "_rng"), 0)


def put_back(before: int) -> None:
    """Number what is traced next as what was traced since there were so many."""
    if context.global_seed() is not None:
        _counts[versions.attribute(context.context(), "_rng")] = before


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


def number_apart(graph: Any) -> None:
    """Number what draws in a graph so that `numbered` finds it, before anything does."""
    _numbers[graph] = _COPIED


def numbered(graph: Any, operations: Iterable[tf.Operation]) -> list[str] | None:
    """The names of those of a graph's operations that have a number in place of a seed, in the order of these.

    None where these are not the numbers of the graph in a row: something else took one, or a user's seed is alike.
    """
    numbers = range(_COPIED, _numbers[graph])
    found = [op for op in operations if op.get_attr("seed2") in numbers]
    return [op.name for op in found] if [op.get_attr("seed2") for op in found] == [*numbers] else None


def renumber(node: Any) -> None:
    """Give the definition of an operation the next number of the graph being built."""
    seeds = random_seed.get_seed(None)
    node.attr["seed"].i, node.attr["seed2"].i = (seed or 0 for seed in seeds)


def have_seeds(operations: Iterable[tf.Operation]) -> bool:
    """Whether one of some operations draws from a seed of its own, or from its number."""
    return any("seed2" in op.node_def.attr for op in operations)
