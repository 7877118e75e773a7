"""What replays consist of, and the gradients of their gradients."""

import collections

import tensorflow as tf

import tfgc
from tfgc._replay import copied_traces, forward_backward


def note_replays(note, replace=setattr):
    """Call `note` with each segment that runs again, or is traced to do so, from now on."""

    def noting(backward):
        def noted(piece, *arguments):
            note(piece)
            return backward(piece, *arguments)

        return noted

    for kind in (forward_backward.Recomputation, copied_traces.CopiedRecomputation):
        replace(kind, "backward", noting(kind.backward))


def operations_of_step(model, x, plan):
    """How many operations of each type a step has, gradients apart: in a `replay`, and elsewhere (`first`)."""
    tfgc.enable(model, plan)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(x, training=True) ** 2)
        return tape.gradient(loss, model.trainable_variables)

    counts = collections.Counter()
    for op in step.get_concrete_function(tf.TensorSpec(x.shape)).graph.get_operations():
        replayed = op.name.startswith("replay") and "gradient_tape" not in op.name
        counts[op.type, "replay" if replayed else "first"] += "gradient_tape" not in op.name
    return counts


def second_order(model, inputs, outside):
    """The gradients of the square of a gradient, in a graph; `outside` of the function that takes the inner one."""
    weights = [v.value for v in model.trainable_variables]

    @tf.function
    def first(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(model(x, training=True) ** 2)
        return tape.gradient(y, x)

    def both(x):
        with tf.GradientTape() as tape:
            penalty = tf.reduce_sum(first(x) ** 2)
        return tape.gradient(penalty, weights)

    @tf.function
    def in_one(x):
        with tf.GradientTape() as outer:
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = tf.reduce_sum(model(x, training=True) ** 2)
            penalty = tf.reduce_sum(tape.gradient(y, x) ** 2)
        return outer.gradient(penalty, weights)

    return (both if outside else in_one)(tf.constant(inputs))
