"""What replays consist of, and the gradients of their gradients."""

import functools

import tensorflow as tf

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
