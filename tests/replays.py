"""What replays consist of, and the gradients of their gradients."""

import collections
import functools

import tensorflow as tf

import tfgc
from tfgc._pairs.backward import Backward
from tfgc._run.emit import Built


def note_replays(note, replace=setattr):
    """Call `note` with each segment that runs again, or is traced to do so, from now on."""

    def noting(backward):
        @functools.wraps(backward)
        def noted(piece, *arguments):
            segments = piece._held().segments
            if segments is None or any(op.segment for op in segments._step.ops.values()):
                note(piece)
            return backward(piece, *arguments)

        return noted

    def building(init):
        @functools.wraps(init)
        def noted(built, trace, step, *arguments):
            if any(op.segment for op in step.ops.values()):
                note(built)
            init(built, trace, step, *arguments)

        return noted

    replace(Backward, "__call__", noting(Backward.__call__))
    replace(Built, "__init__", building(Built.__init__))


def operations_of_step(model, x, plan, sizes=None):
    """How many operations of each type a step has, gradients apart: in backward passes (`replay`), elsewhere (`first`).

    Its input has these sizes, by default those of `x`.
    """
    tfgc.enable(model, plan)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(x, training=True) ** 2)
        return tape.gradient(loss, model.trainable_variables)

    counts = collections.Counter()
    spec = tf.TensorSpec(x.shape if sizes is None else sizes)
    definition = step.get_concrete_function(spec).graph.as_graph_def()
    functions = {function.signature.name: function for function in definition.library.function}

    def count(nodes, where):
        for node in nodes:
            counts[node.op, where] += "gradient_tape" not in node.name
            called = functions.get(node.attr["f"].func.name)
            if called is not None:  # Backward passes alone are not inlined.
                count(called.node_def, "replay" if called.attr["_noinline"].b else where)

    count(definition.node, "first")
    return counts


def second_order(model, inputs, way):
    """The gradients of the square of a gradient, which may be taken in the same graph or in a function."""
    weights = [v.value for v in model.trainable_variables]

    def first(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(model(x, training=True) ** 2)
        return tape.gradient(y, x)

    inner = tf.function(first) if way == "of a function" else first

    def both(x):
        with tf.GradientTape() as tape:
            penalty = tf.reduce_sum(inner(x) ** 2)
        return tape.gradient(penalty, weights)

    return (tf.function(both) if way == "in one graph" else both)(tf.constant(inputs))
