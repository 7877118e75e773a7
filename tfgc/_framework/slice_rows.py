"""What slices of a batch give row by row: rows of buffers that are filled in place, and rows of products.

`concat`, `TensorArray` and `tensor_scatter_nd_update` copy all rows once more. TensorFlow's `InplaceUpdate` does not.
XLA does not know it, and has an operation that is in place inside a loop. Neither has a gradient in TensorFlow; each
gets one here.

The gradient of a weight may be a product of rows, as those of dense layers are: x^T y, of inputs and upstream
gradients. Its sum over slices of a batch is the product of the rows of all slices. So where the rows are less than the
weight, slices give rows in place of the product, which is then computed once: neither the sum nor a slice's part of it
is held while the slices run.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfgc._framework import private_api
from tfgc._framework.internals import gen_xla_ops

# What may stand between a product and the gradient that it is.
_PASSING = ("Identity", "Cast")


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


def places(gradients: Sequence[Any], samples: int, all_samples: int) -> list[int]:
    """Which gradients of a slice are products of rows, that for the whole batch are less than the gradient."""
    return [i for i, gradient in enumerate(gradients) if _is_worthwhile(gradient, samples, all_samples)]


def _is_worthwhile(gradient: Any, samples: int, all_samples: int) -> bool:
    pair = factors(gradient)
    if pair is None or not all(factor.shape.is_fully_defined() for factor in pair):
        return False
    elements = [factor.shape.num_elements() or 0 for factor in pair]
    count: int = pair[0].shape[0] or 0
    return count % samples == 0 and sum(elements) * all_samples < samples * (gradient.shape.num_elements() or 0)


def factors(gradient: Any) -> list[tf.Tensor] | None:
    """The rows that a gradient is the product of; None if it is no such product."""
    if not tf.is_symbolic_tensor(gradient):
        return None
    op = gradient.op
    while op.type in _PASSING:
        op = op.inputs[0].op
    if op.type != "MatMul" or not op.get_attr("transpose_a") or op.get_attr("transpose_b"):
        return None
    return list(op.inputs)


def rows(gradients: Sequence[Any], samples: int) -> list[tf.Tensor]:
    """The factors of products of rows, the samples of the slice in front."""
    made = []
    for gradient in gradients:
        pair = factors(gradient)
        assert pair is not None
        made += [tf.reshape(factor, [samples, (factor.shape[0] or 0) // samples, factor.shape[1]]) for factor in pair]
    return made


def product(x: tf.Tensor, y: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """The product of rows of all samples."""
    flat = [tf.reshape(factor, [-1, factor.shape[-1]]) for factor in (x, y)]
    return tf.cast(tf.matmul(*flat, transpose_a=True), dtype)
