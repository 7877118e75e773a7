"""Compare what a segment's layers made in two runs, by a few numbers for each.

A checksum holds the norm of a tensor, two weighted sums (one over all places but the last axis, one along it, so that a
shuffle shows too), and by how much these may move if every element is rounded anew: docs/design/pure.md says why. It is
carried as integers, because no gradient flows through it.
"""

from typing import Any

import tensorflow as tf

from tfgc._errors import OptionError, ReplayMismatchError
from tfgc._framework import private_api
from tfgc._pure import random_draws

_ROUNDINGS = 4
_GOLDEN = 0.6180339887498949


def checksum(tensor: tf.Tensor) -> tf.Tensor:
    """The checksum of a tensor: integers of shape (4,)."""
    if tensor.dtype == tf.string:
        tensor = tf.strings.to_hash_bucket_fast(tensor, 2**20)
    precision = _epsilon(tensor.dtype.real_dtype) if tensor.dtype.is_floating or tensor.dtype.is_complex else 0.0
    if tensor.dtype.is_complex:
        tensor = tf.stack([tf.math.real(tensor), tf.math.imag(tensor)])
    values = tensor if tensor.dtype in (tf.float32, tf.float64) else tf.cast(tensor, tf.float32)
    values = tf.stop_gradient(values)
    size = tf.cast(tf.size(values), tf.float64)
    norm = tf.sqrt(2.0 * tf.cast(tf.nn.l2_loss(values), tf.float64))
    rows = tf.reshape(values, [-1, tf.shape(values)[-1] if values.shape.rank else 1])
    sums = [_weighted(tf.reduce_sum(rows, axis)) for axis in (1, 0)]
    # Rounding each element moves a sum by eps times the norm; adding up moves it by no more than the second term.
    allowed = _ROUNDINGS * norm * (precision + _epsilon(values.dtype) * tf.sqrt(size))
    return tf.bitcast(tf.stack([norm, *sums, allowed]), tf.int64)


def _epsilon(dtype: tf.DType) -> float:
    return {tf.float16: 2.0**-10, tf.bfloat16: 2.0**-7, tf.float32: 2.0**-23}.get(dtype, 2.0**-52)


def _weighted(values: tf.Tensor) -> tf.Tensor:
    """A sum in which every place has another weight: the fractional parts of multiples of the golden ratio."""
    places = tf.cast(tf.range(tf.size(values)), tf.float64)
    return tf.reduce_sum(tf.cast(values, tf.float64) * tf.math.mod(places * _GOLDEN, 1.0))


def raise_if_different(
    name: str, labels: list[str], first: list[tf.Tensor], again: list[tf.Tensor], gradients: Any
) -> Any:
    """Return `gradients` of the second run of a segment, provided that the checksums of both runs agree.

    If not, eager calls raise `ReplayMismatchError`, and a graph fails when it runs, with the same message.
    """
    if private_api.in_xla():  # It drops assertions.
        raise OptionError(
            "check_replay=True cannot stop a step that XLA compiles: leave out one of check_replay=True and "
            "jit_compile=True"
        )
    ones, others = (tf.bitcast(tf.stack(sums), tf.float64) for sums in (first, again))
    difference = tf.abs(ones - others)[:, :3]
    alike = (difference <= ones[:, 3:]) | ~(tf.math.is_finite(ones[:, :3]) | tf.math.is_finite(others[:, :3]))
    wrong = ~tf.reduce_all(alike, axis=1)
    at = tf.argmax(wrong)
    which = tf.argmax(tf.where(alike[at], tf.zeros((), tf.float64), difference[at] + 1))
    culprit = tf.gather(tf.constant(labels), at)
    values = ones[at, which], others[at, which]
    if tf.executing_eagerly():
        if bool(wrong[at]):
            raise ReplayMismatchError(_message(name, culprit.numpy().decode(), *(float(v) for v in values)))
        return gradients
    words = _message(name, "{}", "{}", "{}").split("{}")
    data = [words[0], culprit, words[1], values[0], words[2], values[1], words[3]]
    with tf.control_dependencies([tf.debugging.Assert(~wrong[at], data)]):
        return tf.nest.map_structure(lambda x: x if x is None else tf.identity(x), gradients, expand_composites=True)


def _message(name: str, layer: str, first: float | str, again: float | str) -> str:
    return (
        f"the second run of {name} did not repeat the first: {layer} made values with the checksum {first} "
        f"in the first run and {again} in the second. {random_draws.REPEATABLE}"
    )
