"""The graph that is being built: what it captures, and what waits for what."""

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from tfgc._framework.internals import ControlFlowFuncGraph, record

# The graph of a function, by a name, to trace in what is never run.
scratch_graph = tf.__internal__.FuncGraph


@contextlib.contextmanager
def captures_replaced(stand_ins: Mapping[int, tf.Tensor], found: list[Any]) -> Iterator[None]:
    """Let tensors, by id, be captured as others of the graph being built; add those captured otherwise to `found`."""
    graph = tf.compat.v1.get_default_graph()
    original = graph.capture

    def captured(tensor: tf.Tensor, *args: Any, **kwargs: Any) -> tf.Tensor:
        if id(tensor) in stand_ins:
            return stand_ins[id(tensor)]
        if tensor.dtype != tf.resource and not (tf.is_symbolic_tensor(tensor) and tensor.graph is graph):
            found.append(tensor)
        return original(tensor, *args, **kwargs)

    with patched(graph, "capture", captured):
        yield


@contextlib.contextmanager
def patched(graph: Any, method: str, function: Callable) -> Iterator[None]:
    """Replace a method of one graph, which has no `vars`, by a function; patches may be nested."""
    before = getattr(graph, method)
    setattr(graph, method, function)
    try:
        yield
    finally:
        delattr(graph, method)  # The method of the class is found again.
        if not inspect.ismethod(before):  # It was the patch of a run around this one.
            setattr(graph, method, before)


def capture(tensor: tf.Tensor) -> tf.Tensor:
    """The tensor that stands for `tensor` in the graph being built."""
    if tf.executing_eagerly():
        return tensor
    inside = tf.is_symbolic_tensor(tensor) and tensor.graph is tf.compat.v1.get_default_graph()
    # An operation that reads a tensor from outside brings it in, in every kind of graph.
    return tensor if inside else tf.identity(tensor).op.inputs[0]


Captures = tuple[Any, list[tuple[tf.Tensor, tf.Tensor]]]


def captures_so_far() -> Captures:
    """The graph being built, and what it has captured so far: pairs of an outer tensor and its stand-in."""
    graph = tf.compat.v1.get_default_graph()
    return graph, list(getattr(graph, "captures", ()))


@contextlib.contextmanager
def redirect_captures(earlier: Captures) -> Iterator[None]:
    """Let the graph being built capture what the `earlier` one captured by the stand-ins that it had there.

    The gradient of `tf.cond` or `tf.while_loop` is a graph beside that of the branch or the body. What the branch made
    or captured reaches it as an input, under the branch's name for it; a tensor of the graph around, captured
    directly, would have the same value and lead past the branch, so that no gradient arrives:

        around      x --------------------------.
                    |                            \\   without redirection
        branch      x' (a capture of x) -> y      \\
                    |                              \\
        gradient    x'' (an input for x')           x (another input)

    In here, capturing `x` gives `x''`, and tapes record it as a copy of `x`.
    """
    graph, pairs = earlier
    stand_ins, here = {id(outer): inner for outer, inner in pairs}, tf.compat.v1.get_default_graph()
    branching = any(isinstance(graph, ControlFlowFuncGraph) for graph in _enclosing(here))
    if graph is here or not branching:
        yield
        return
    original = here.capture

    def redirected(tensor: tf.Tensor, *args: Any, **kwargs: Any) -> tf.Tensor:
        captured = original(stand_ins.get(id(tensor), tensor), *args, **kwargs)
        if id(tensor) in stand_ins:  # as capturing `tensor` itself would show it to the tapes
            record.record_operation("captured_value", [captured], [tensor], lambda g: [g], lambda t: [t])
        return captured

    with patched(here, "capture", redirected):
        yield


def can_reach(earlier: Captures) -> bool:
    """Return False if the graph being built cannot use the tensors of the branch or body that `captures_so_far` saw."""
    graph, _ = earlier
    if not isinstance(graph, ControlFlowFuncGraph):
        return True
    # Its gradient can, and what is nested in it; the gradient of a copy that TensorFlow made of it cannot.
    around = _enclosing(tf.compat.v1.get_default_graph())
    return any(graph in (outer, getattr(outer, "_forward_graph", None)) for outer in around)


def _enclosing(graph: Any) -> Iterator[Any]:
    """The graph and all around it."""
    while graph is not None:
        yield graph
        graph = getattr(graph, "outer_graph", None)
