"""What the losses of a model's outputs, and their gradients, need beside the outputs."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfgc._core.graph import Graph, Spec
from tfgc._costs import gradient_graphs
from tfgc._costs.call_operations import Call
from tfgc._framework import graph_building, keras_names


def loss_course(graph: Graph, losses: Sequence[Sequence[Any]], are_compiled: bool = False) -> tuple[int, ...]:
    """The byte trace of losses and their gradients, for `Graph.loss`.

    Targets have the shape of their output, or are one integer in place of its last dimension.

    Args:
        graph: The graph of the model.
        losses: For each output a list of names, functions of targets and predictions, and `keras.Loss` objects.
        are_compiled: Whether `compile` was given them. One that needs other targets is then left out.
    """
    course: tuple[int, ...] = ()
    for ref, several in zip(graph.outputs, losses):
        for loss in several:
            course += _of_output(keras_names.loss(loss), graph.specs[ref], graph.xla, are_compiled)
    return course


def _of_output(loss: Callable, spec: Spec, xla: bool, may_fail: bool) -> tuple[int, ...]:
    failures: Any = Exception if may_fail else (ValueError, TypeError, tf.errors.InvalidArgumentError)
    try:
        return _course_of(loss, spec, (spec.dtype, spec.shape), xla)
    except failures:
        pass
    try:
        return _course_of(loss, spec, ("int32", spec.shape[:-1]), xla)
    except failures:
        if may_fail:
            return ()
        raise


def _course_of(loss: Any, spec: Spec, target: tuple, xla: bool) -> tuple[int, ...]:
    with graph_building.scratch_graph("loss").as_default() as graph:
        predicted = tf.compat.v1.placeholder(spec.dtype, spec.shape)
        given = tf.compat.v1.placeholder(*target)
        with tf.GradientTape() as tape:
            tape.watch(predicted)
            value = tf.reduce_mean(loss(given, predicted))
        upstream = tf.compat.v1.placeholder(value.dtype, value.shape)
        gradients = [tape.gradient(value, predicted, output_gradients=upstream)]
    call = Call(graph, [predicted, given], [], [value], [upstream], gradients, [predicted])
    cost = gradient_graphs.footprint(call, xla=xla).cost
    # The gradient does not wait for the value, so what the value alone needs is still there, and what it still reads is
    # not overwritten.
    alone = tuple(count for count in cost.forward_saving_trace if count > 0)
    shared = 0 if xla else gradient_graphs.shared_bytes(call)
    return alone + ((shared, *cost.backward_trace, -shared) if shared else cost.backward_trace)
