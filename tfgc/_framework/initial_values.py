"""Variables that a layer's `build` makes of a tensor, in a graph that is traced and never run.

TensorFlow makes a variable of a tensor in the first trace of a `tf.function`, out of which it takes the operations
that the tensor follows from once the trace is done. In here that is done at once, in any graph.

Known weakness: what follows from random numbers without a seed, from the batch, or from a variable that the trace
writes has no value there, and TensorFlow refuses it.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf


@contextlib.contextmanager
def known_at_once() -> Iterator[None]:
    """Let variables be made of tensors of the graph being built, where these have a value before it runs."""
    graph = tf.compat.v1.get_default_graph()

    def create(next_creator: Callable, **options: Any) -> Any:
        tensor = options["initial_value"]
        if tf.is_symbolic_tensor(tensor) and tensor.graph is graph and _has_value(tensor):
            options["initial_value"] = _value(tensor)
        return next_creator(**options)

    with tf.variable_creator_scope(create):
        yield


def _has_value(tensor: tf.Tensor) -> bool:
    """Whether a tensor follows from constants, and from variables that nothing in its graph writes."""
    captured = {inner.op for _, inner in tensor.graph.captures}
    seen, left = set(), [tensor.op]
    while left:
        operation = left.pop()
        if operation in seen:
            continue
        seen.add(operation)
        if operation.type == "ReadVariableOp":
            if any(reader.type != "ReadVariableOp" for reader in operation.inputs[0].consumers()):
                return False
        elif operation.op_def.is_stateful or (operation.type == "Placeholder" and operation not in captured):
            return False
        left += [*(made.op for made in operation.inputs), *operation.control_inputs]
    return True


def _value(tensor: tf.Tensor) -> tf.Tensor:
    def lifted() -> tf.Tensor:
        graph = tf.compat.v1.get_default_graph()
        return tf.__internal__.lift_to_graph([tensor], graph, add_sources=True, handle_captures=True)[tensor]

    with tf.init_scope():
        return tf.function(lifted, autograph=False).get_concrete_function()()
