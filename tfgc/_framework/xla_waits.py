"""What makes tensors wait for others where XLA compiles, which drops control edges."""

from collections.abc import Callable, Sequence

import tensorflow as tf


def waiting(late: Sequence[tf.Tensor]) -> Callable[[tf.Tensor], tf.Tensor]:
    """A function that makes a tensor wait until others, of floating numbers, are there."""
    sums = [tf.cast(tf.abs(tf.reduce_sum(x)), tf.float32) for x in late if x.dtype.is_floating or x.dtype.is_complex]
    if not sums:
        return lambda x: x
    total = tf.add_n(sums)
    # XLA cannot know that this is zero, and unlike 0 * upstream it stays zero when a gradient overflows.
    never = tf.math.is_nan(total) & tf.math.is_inf(total)

    def wait(x: tf.Tensor) -> tf.Tensor:
        if x.dtype.is_bool:
            return x | never
        return x + tf.cast(never, x.dtype) if x.dtype.is_floating or x.dtype.is_integer else x

    return wait
