"""Where in a trace gradients are made: which operations each gradient call adds.

Calls are noted while a step is traced. A function that was traced before, and that the step calls, shows them by the
names of its operations alone; two calls one right behind the other look like one there.
"""

import contextlib
import functools
from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf

from tfgc._framework.diverted_calls import DivertedCalls
from tfgc._framework.internals import gradients_util

# What a step asks for gradients by: `tape.gradient` (and what is made of it, such as `jacobian`), and `tf.gradients`.
_GRADIENTS = (DivertedCalls(tf.GradientTape, "gradient"), DivertedCalls(gradients_util, "_GradientsHelper"))
# The name scope of a tape's gradients, and what such a call adds outside of it.
_SCOPE = "gradient_tape/"
_BETWEEN = frozenset(["AddN", "Const", "Identity", "IdentityN", "Reshape", "Shape", "ZerosLike", "OnesLike", "Fill"])


@contextlib.contextmanager
def noted() -> Iterator[list[tuple[Any, int, int]]]:
    """A list of the gradient calls that this thread makes: the graph, and where their operations begin and end."""
    found: list[tuple[Any, int, int]] = []
    with contextlib.ExitStack() as stack:
        for gradients in _GRADIENTS:
            stack.enter_context(gradients.to(functools.partial(_noting, found, gradients)))
        yield found


def _noting(found: list[tuple[Any, int, int]], gradients: DivertedCalls, *args: Any, **kwargs: Any) -> Any:
    graph: Any = tf.compat.v1.get_default_graph()
    start = _count(graph)
    result = gradients.original(*args, **kwargs)
    found.append((graph, start, _count(graph)))
    return result


def _count(graph: Any) -> int:
    return len(graph.get_operations()) if isinstance(graph, tf.Graph) else 0


def spans(graphs: Iterable[tuple[Any, list[int]]], found: list[tuple[Any, int, int]]) -> list[tuple[int, int]]:
    """The gradient calls of a trace, those that lie in another left out.

    Args:
        graphs: Each graph of it, and where each of its operations begins in the trace.
        found: The calls that were noted.
    """
    known = {id(graph) for graph, _, _ in found}
    made = []
    for graph, begins in graphs:
        calls = [(start, end) for other, start, end in found if other is graph] if id(graph) in known else _named(graph)
        made += [(begins[start], begins[end]) for start, end in calls]
    return list(_outer(sorted((start, end) for start, end in made if end > start)))


def _named(graph: Any) -> Iterator[tuple[int, int]]:
    start = end = 0
    for i, op in enumerate(graph.get_operations()):
        if op.name.startswith(_SCOPE):
            start, end = (start, i + 1) if end else (i, i + 1)
        elif end and op.type not in _BETWEEN:
            yield start, end
            end = 0
    if end:
        yield start, end


def _outer(found: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The spans that lie in no other: a custom gradient may ask for gradients while those of another call are made."""
    until = 0
    for start, end in found:
        if end > until:
            yield start, end
            until = end
