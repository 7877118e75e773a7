"""In what order XLA computes the gradients that a replay gives.

Its scheduler for GPUs puts gradients of weights off, since nothing but the update reads them. Until then what they are
made of stays: the replayed inputs of convolutions and products, and the gradients that flow back. Those of layers that
are kept are up to `replay_order`.
"""

import contextlib
from collections.abc import Collection, Sequence
from typing import Any

import tensorflow as tf

from tfgc._framework import private_api
from tfgc._framework.internals import gen_xla_ops, pfor

_BARRIER = "XlaOptimizationBarrier"


def _of_all_iterations(pfor_input: Any) -> list[Any]:
    """The barrier of what `tf.vectorized_map` computes at once."""
    stacked = [pfor_input.stacked_input(i) for i in range(pfor_input.num_inputs)]
    made: Any = gen_xla_ops.xla_optimization_barrier(stacked)
    return [pfor.wrap(tensor, True) for tensor in made]


with contextlib.suppress(KeyError):  # A later TensorFlow may have one.
    tf.RegisterGradient(_BARRIER)(lambda op, *upstream: [*upstream])
with contextlib.suppress(KeyError):
    pfor.RegisterPFor(_BARRIER)(_of_all_iterations)


def behind(tensor: tf.Tensor) -> tf.Tensor:
    """What a tensor is behind the barrier, if it comes from one; else itself."""
    return tensor.op.inputs[tensor.value_index] if tensor.op.type == _BARRIER else tensor


def all_at_once(gradients: Sequence[Any], arguments: int, unasked: Collection[int]) -> list[Any]:
    """Gradients none of which XLA goes on from before all are there, kernels' among them; else they stay as they are.

    So they do where a tape records them: it would take all of what a barrier makes for used.

    Args:
        gradients: `tf.Tensor`, `tf.IndexedSlices` or None.
        arguments: How many of them, the first ones, are gradients of arguments, and not of weights.
        unasked: Positions of those that may be for nobody, and are not to be computed then.
    """
    if not private_api.in_xla():
        return [*gradients]
    asked = {i: gradient for i, gradient in enumerate(gradients) if i not in unasked and gradient is not None}
    # The shape of a sparse gradient must be a constant that XLA can see.
    tensors = [t for t in tf.nest.flatten([*asked.values()], expand_composites=True) if not t.dtype.is_integer]
    if not any(i >= arguments and _is_of_kernel(g) for i, g in asked.items()) or private_api.is_recorded(tensors):
        return [*gradients]
    made: Any = gen_xla_ops.xla_optimization_barrier(tensors)
    held = {t.ref(): new for t, new in zip(tensors, made)}
    flat = tf.nest.flatten([*gradients], expand_composites=True)
    flat = [t if t is None else held.get(t.ref(), t) for t in flat]
    return tf.nest.pack_sequence_as([*gradients], flat, expand_composites=True)


def _is_of_kernel(gradient: Any) -> bool:
    """Whether a product made a gradient, and no sum."""
    return gradient.shape.rank is None or gradient.shape.rank > 1
