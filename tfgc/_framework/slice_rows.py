"""Rows of buffers that slices of a batch fill in place.

`concat`, `TensorArray` and `tensor_scatter_nd_update` copy all rows once more. TensorFlow's `InplaceUpdate` does not.
XLA does not know it, and has an operation that is in place inside a loop. Neither has a gradient in TensorFlow; each
gets one here.
"""

import contextlib
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfgc._framework import private_api
from tfgc._framework.internals import gen_xla_ops


def _register(kind: str, gradient: Callable) -> None:
    with contextlib.suppress(KeyError):  # A later TensorFlow may have one.
        tf.RegisterGradient(kind)(gradient)


# The rows of the buffer that were there before get a gradient, too, which goes nowhere: nothing made them.
_register("InplaceUpdate", lambda op, upstream: (upstream, None, tf.gather(upstream, op.inputs[1])))
_register(
    "XlaDynamicUpdateSlice",
    lambda op, upstream: (upstream, tf.slice(upstream, op.inputs[2], tf.shape(op.inputs[1])), None),
)


def _without_room(op: tf.Operation, upstream: tf.Tensor) -> tuple[tf.Tensor, None]:
    """The gradient of `with_room`. In that of `tf.pad`, Grappler folds the shape of what a loop makes larger."""
    rows, *rest = tf.unstack(tf.shape(upstream))
    return tf.slice(upstream, [0] * len(upstream.shape), [rows - op.inputs[1][0, 1], *rest]), None


_ROOM = "TfgcWithRoom"
_register(_ROOM, _without_room)


def with_room(rows: tf.Tensor, more: Any) -> tf.Tensor:
    """Rows, with room for so many more behind; where that is none, the tensor itself."""
    # Of what is made of a size or of constants alone, Grappler makes one constant for all that are equal, into which
    # several were then written: in a loop `more` depends on the iteration.
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    with contextlib.nullcontext() if graph is None else graph.gradient_override_map({"Pad": _ROOM}):
        return tf.pad(rows, [[0, more], *([0, 0] for _ in rows.shape[1:])])


def write(buffer: tf.Tensor, start: Any, rows: tf.Tensor) -> tf.Tensor:
    """The buffer with `rows` from `start` on; what it held before is gone."""
    if private_api.in_xla():
        return gen_xla_ops.xla_dynamic_update_slice(buffer, rows, [start] + [0] * (len(rows.shape) - 1))
    return tf.raw_ops.InplaceUpdate(x=buffer, i=start + tf.range(tf.shape(rows)[0]), v=rows)
