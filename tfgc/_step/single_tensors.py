"""The bytes of a single tensor of a graph, and the tensor whose buffer it renames."""

import tensorflow as tf

from tfgc._core.tensors import itemsize
from tfgc._step.flop_counts import VIEWS


def tensor_bytes(tensor: tf.Tensor, rows: int | None = None) -> int:
    """Bytes of a tensor of known shape; 0 for resources and variants. A string is its handle, as in `Spec.bytes`.

    A first size that is not known counts as `rows`.
    """
    shape = tensor.shape
    if shape.rank and shape[0] is None:
        shape = tf.TensorShape([rows, *shape[1:]])
    count = shape.num_elements()
    if count is None or tensor.dtype in (tf.resource, tf.variant):
        return 0
    return count * itemsize(tensor.dtype.name)


def renamed(tensor: tf.Tensor) -> tf.Tensor | None:
    """The tensor whose buffer `tensor` merely renames, or None."""
    op = tensor.op
    if op.type in VIEWS:
        return op.inputs[0]
    if op.type == "IdentityN":
        return op.inputs[tensor.value_index]
    if op.type == "Mul":
        # TensorFlow's optimizer drops a multiplication by one, such as the beta of silu.
        for one, other in ((0, 1), (1, 0)):
            scalar = op.inputs[one].shape.rank == 0 and op.inputs[one].op.type == "Const"
            if scalar and tf.get_static_value(op.inputs[one]) == 1:
                return op.inputs[other]
    return None


def root(tensor: tf.Tensor) -> tf.Tensor:
    """The tensor that `tensor` renames, or itself."""
    while (source := renamed(tensor)) is not None:
        tensor = source
    return tensor
