"""Let the gradient of a `tf.function` keep no more of its call than it reads, and compute gradients of weights in time.

TensorFlow differentiates a function by a second one, and has the first one return whatever the second one captures.
That is also what only gradients of constants read, which nobody asks for: two tensors more for each gelu. What is asked
for here is said of a graph while it is traced; the gradients of other graphs are TensorFlow's own.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfgc._framework import operation_order, private_api, weight_gradients
from tfgc._framework.internals import gradients_util
from tfgc._framework.versions import attribute

_HELPER, _INPUTS = "_GradientsHelper", "tfgc_inputs"  # the attribute of a graph that holds them, and goes with it


class _Inputs(NamedTuple):
    """Of a function's inputs, in order: how many are arguments, how many values of weights, and what may be put off."""

    arguments: int
    weights: int
    backlog: weight_gradients.Backlog | None


def keep_little(arguments: int, weights: int) -> None:
    """Let the function being traced, of so many arguments and values of weights, keep little for its gradient."""
    graph = tf.compat.v1.get_default_graph()
    setattr(graph, _INPUTS, _Inputs(arguments, weights, weight_gradients.backlog()))
    helper = attribute(gradients_util, _HELPER)
    if not hasattr(helper, _INPUTS):
        # Once for all: threads that trace at the same time could not take it back in order.
        setattr(gradients_util, _HELPER, _instead_of(helper))


def _instead_of(helper: Callable) -> Callable:
    """What stands in for the function by which TensorFlow differentiates graphs."""

    def differentiated(*args: Any, **kwargs: Any) -> Any:
        inputs = getattr(kwargs.get("src_graph"), _INPUTS, None)
        if inputs is None:
            return helper(*args, **kwargs)
        traced = weight_gradients.Backward()
        gradients = helper(*args, **kwargs)
        known = inputs.arguments, inputs.arguments + inputs.weights
        traced.order(gradients[: known[0]], gradients[known[0] : known[1]], inputs.backlog)
        _drop_unread(gradients)
        return gradients

    setattr(differentiated, _INPUTS, None)
    return differentiated


def _drop_unread(gradients: Sequence[Any]) -> None:
    """Let the function being traced capture only what the gradients read, and operations that run anyway."""
    graph: Any = tf.compat.v1.get_default_graph()
    operations = graph.get_operations()
    asked = tf.nest.flatten([gradient for gradient in gradients if gradient is not None], expand_composites=True)
    ends = [*(tensor.op for tensor in asked), *(op for op in operations if private_api.is_stateful(op.type))]
    needed = operation_order.ancestors(operation_order.dependencies(operations), ends)
    for outer, inner in graph.captures:
        if inner.op not in needed:
            attribute(graph, "function_captures").pop(id(outer))
