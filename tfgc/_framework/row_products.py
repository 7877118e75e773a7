"""Gradients of weights that are a product of rows, as those of dense layers: x^T y, of inputs and upstream gradients.

Their sum over slices of a batch is the product of the rows of all slices. So where the rows are less than the weight,
slices give rows in place of the product, which is then computed once: neither the sum nor a slice's part of it is held
while the slices run.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfgc._framework import xla_schedule

# What may stand between a product and the gradient that it is.
_PASSING = ("Identity", "Cast")


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
    op = xla_schedule.behind(gradient).op
    while op.type in _PASSING:
        op = xla_schedule.behind(op.inputs[0]).op
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
