"""Which layer made an operation: where in a trace the calls of Keras layers begin and end."""

import contextlib
import weakref
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

import keras
import tensorflow as tf

from tfgc._framework.diverted_calls import DivertedCalls
from tfgc._framework.internals import Operation

# A layer, the graph in which it was called, and how many operations that had before and afterwards.
Call: TypeAlias = tuple[weakref.ref, Any, int, int]

_CALLS = DivertedCalls(Operation, "__call__")


@contextlib.contextmanager
def noted() -> Iterator[list[Call]]:
    """A list of the calls of layers that this thread makes in graphs."""
    found: list[Call] = []

    def call(operation: Any, *args: Any, **kwargs: Any) -> Any:
        graph: Any = tf.compat.v1.get_default_graph()
        if tf.executing_eagerly() or not isinstance(operation, keras.Layer):
            return _CALLS.original(operation, *args, **kwargs)
        start = len(graph.get_operations())
        made = _CALLS.original(operation, *args, **kwargs)
        found.append((weakref.ref(operation), graph, start, len(graph.get_operations())))
        return made

    with _CALLS.to(call):
        yield found


def spans(
    graphs: Iterable[tuple[Any, list[int]]], found: Iterable[Call], layers: Iterable[keras.Layer]
) -> list[list[tuple[int, int]]]:
    """Where the operations of each of these layers begin and end in a trace, those in another one of them left out.

    Args:
        graphs: Each graph of the trace, as often as it is called, and where each of its operations begins there.
        found: The calls that were noted.
        layers: The layers; those that were not called have no spans.
    """
    wanted = {id(layer): i for i, layer in enumerate(layers)}
    calls = [
        (begins[start], begins[end], wanted[id(layer())])
        for graph, begins in graphs
        for layer, other, start, end in found
        if other is graph and id(layer()) in wanted and end > start
    ]
    made: list[list[tuple[int, int]]] = [[] for _ in wanted]
    until = 0
    for start, end, i in sorted(calls, key=lambda call: (call[0], -call[1])):
        if start >= until:
            made[i].append((start, end))
            until = end
    return made
