"""Which layer made an operation: where in a trace the calls of Keras layers begin and end."""

import contextlib
import re
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

import keras
import tensorflow as tf

from tfgc._framework.diverted_calls import DivertedCalls

# A layer, the graph in which it was called, how many operations that had before and afterwards, and the call's path.
Call: TypeAlias = tuple[weakref.ref, Any, int, int, tuple[str, ...]]

_CALLS = DivertedCalls(keras.Operation, "__call__")


@contextlib.contextmanager
def noted() -> Iterator[list[Call]]:
    """A list of the calls of layers, and of operations of Keras, that this thread makes in graphs."""
    found: list[Call] = []
    counts: dict[Any, int] = Counter()
    around: list[tuple[str, ...]] = [()]

    def call(operation: Any, *args: Any, **kwargs: Any) -> Any:
        graph: Any = tf.compat.v1.get_default_graph()
        if tf.executing_eagerly() or not isinstance(operation, keras.Operation):
            return _CALLS.original(operation, *args, **kwargs)
        start, path = len(graph.get_operations()), (*around[-1], operation.name)
        count = counts[graph, path]
        counts[graph, path] += 1
        around.append((*path[:-1], f"{path[-1]}:{count}") if count else path)
        try:
            made = _CALLS.original(operation, *args, **kwargs)
        finally:
            path = around.pop()
        found.append((weakref.ref(operation), graph, start, len(graph.get_operations()), path))
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
        for layer, other, start, end, _ in found
        if other is graph and id(layer()) in wanted and end > start
    ]
    made: list[list[tuple[int, int]]] = [[] for _ in wanted]
    until = 0
    for start, end, i in sorted(calls, key=lambda call: (call[0], -call[1])):
        if start >= until:
            made[i].append((start, end))
            until = end
    return made


def ends(graphs: Iterable[tuple[Any, list[int]]], found: Iterable[Call]) -> dict[str, tuple[int, ...]]:
    """Behind which operations of a trace the calls of each layer end, by its path, and each call, by its own.

    A path leads through the layers around, as `block/dense`, and may leave out the first ones: of those of the same
    name, that means the calls which lie in the fewest others. The second call in one place is `dense:1`.
    """
    made: dict[str, tuple[int, list[int]]] = {}
    for graph, begins in graphs:
        for _, _, _, end, path in (call for call in found if call[1] is graph):
            for left_out in range(len(path)):
                own = "/".join(path[left_out:])
                for name in {own, re.sub(r":\d+(?=/|$)", "", own)}:
                    if name not in made or left_out < made[name][0]:
                        made[name] = left_out, []
                    if left_out == made[name][0]:
                        made[name][1].append(begins[end] - 1)
    return {name: tuple(places) for name, (_, places) in made.items()}
