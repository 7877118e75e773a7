"""Layers that run out of memory when they are asked to: in a pass, or while it is traced."""

import keras
import tensorflow as tf

from tfgc._framework import private_api

# Each trap is sprung by a call of its operation: in the forward pass, the replay, or the backward pass.
PASSES = ("forward", "replay", "backward")
armed = {"trap": None, "calls": 0}
# What XLA carries: neither Python nor assertions. It allocates all that a step needs before it runs anything.
GREEDY = ("greedy forward", "greedy backward")
_TERABYTES = [2**15, 2**15, 2**12]


def arm(name=None, where=None, nth=1):
    """Let a layer run out of memory in a pass, or while one is traced ("traced forward", "traced backward").

    Args:
        name: The layer.
        where: The pass, or one of `GREEDY`: under XLA the layer needs terabytes in that pass until another is armed.
        nth: At which trace, since each is traced several times.
    """
    armed.update(trap=name, where=where, calls=0, nth=nth)


def spring(name, where):
    """Run out of memory if this trap is armed. TensorFlow makes a ResourceExhaustedError of Python's MemoryError."""

    def run(x):
        if armed["trap"] == name and armed["where"].replace("replay", "forward") == where:
            armed["calls"] += 1
            if armed["calls"] == (2 if armed["where"] == "replay" else 1):
                arm()
                raise MemoryError(f"OOM in {name}, {where}")
        return x

    return run


def checked(x, name, where):
    here = armed["trap"] == name
    if not tf.executing_eagerly() and here and armed["where"] == f"traced {where}" and _is_nth():
        arm()
        raise tf.errors.ResourceExhaustedError(None, None, f"OOM in {name}, traced {where}")
    if private_api.in_xla():
        return x + _huge(x) if here and armed["where"] == f"greedy {where}" else tf.identity(x)
    try:
        made = tf.numpy_function(spring(name, where), [x], x.dtype, stateful=False)
    except MemoryError as error:  # of an operation that runs eagerly
        raise tf.errors.ResourceExhaustedError(None, None, str(error)) from error
    made.set_shape(x.shape)
    return made


def _is_nth():
    armed["calls"] += 1
    return armed["calls"] == armed["nth"]


def _huge(x):
    seed = tf.stack([1, tf.cast(tf.reduce_max(x), tf.int32)])  # Of a constant one XLA would try to compute a constant.
    numbers = tf.sort(tf.random.stateless_uniform(_TERABYTES, seed), axis=0)
    return tf.reduce_sum(numbers[:1])


class Trap(keras.layers.Layer):
    """The identity, which can run out of memory."""

    def call(self, x):
        @tf.custom_gradient
        def trap(x):
            return checked(x, self.name, "forward"), lambda dy: checked(dy, self.name, "backward")

        return trap(x)

    def compute_output_shape(self, shape):  # Keras would trace `call`, and make a TypeError of what that raises.
        return shape
