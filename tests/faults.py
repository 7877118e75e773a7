"""Layers that run out of memory when they are asked to: in a pass, or while it is traced."""

import keras
import tensorflow as tf

# Each trap is sprung by a call of its operation: in the forward pass, the replay, or the backward pass.
PASSES = ("forward", "replay", "backward")
armed = {"trap": None, "calls": 0}


def arm(name=None, where=None):
    """Let a layer run out of memory in a pass, or while one is traced ("traced forward", "traced backward")."""
    armed.update(trap=name, where=where, calls=0)


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
    if not tf.executing_eagerly() and armed["trap"] == name and armed["where"] == f"traced {where}":
        arm()
        raise tf.errors.ResourceExhaustedError(None, None, f"OOM in {name}, traced {where}")
    try:
        made = tf.numpy_function(spring(name, where), [x], x.dtype, stateful=False)
    except MemoryError as error:  # of an operation that runs eagerly
        raise tf.errors.ResourceExhaustedError(None, None, str(error)) from error
    made.set_shape(x.shape)
    return made


class Trap(keras.layers.Layer):
    """The identity, which can run out of memory."""

    def call(self, x):
        @tf.custom_gradient
        def trap(x):
            return checked(x, self.name, "forward"), lambda dy: checked(dy, self.name, "backward")

        return trap(x)

    def compute_output_shape(self, shape):  # Keras would trace `call`, and make a TypeError of what that raises.
        return shape
