"""The operations that are made in a graph: noted, and kept out of clusters."""

import contextlib
from collections.abc import Callable, Iterator

import tensorflow as tf

from tfgc._framework import private_api
from tfgc._framework.versions import attribute


@contextlib.contextmanager
def noted() -> Iterator[list[tf.Operation]]:
    """Give a list that gets, at the end, the operations that are made in here in the graph being built."""
    graph, made = tf.compat.v1.get_default_graph(), []
    start = len(graph.get_operations())
    yield made
    made += graph.get_operations()[start:]


@contextlib.contextmanager
def outside_clusters(is_one: Callable[[str], bool]) -> Iterator[None]:
    """Let TensorFlow's automatic clusters for XLA leave out the operations of these types that are made in here."""
    if tf.executing_eagerly() or private_api.in_xla():
        yield
        return
    with noted() as made:
        yield
    for op in made:
        if is_one(op.type):
            attribute(op, "_set_attr")("_XlaCompile", tf.compat.v1.AttrValue(b=False))
