"""Boolean masks stored for a replay, eight elements in a byte.

The random mask of a dropout is dear to draw, and in bits it is a 32nd of the numbers that it is applied to. Gist stores
what the gradient of a ReLU reads so (Jain et al. 2018, "Gist: Efficient Data Encoding for Deep Neural Network
Training"). Eight elements are packed by one product of integers, and unpacked by a table.
"""

import math
import sys
from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf

# A sample's part of a mask has at least so many elements: a smaller one is drawn as fast.
_LEAST = 64
# Of eight bytes of 0 or 1 it moves the lowest bits side by side into the highest byte.
_GATHERING = 0x0102040810204080
# The eight elements that each byte stands for.
_BITS: Any = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder=sys.byteorder).astype(bool)


def can_be_packed(mask: Any) -> bool:
    """Whether a tensor, or what is said of one, is a mask to be packed: all its sizes but the first are known."""
    return mask.dtype.is_bool and _of_a_sample(mask.shape) >= _LEAST


def divided(masks: Iterable[tf.Tensor]) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Those masks that can be packed, and the others."""
    both: tuple[list[tf.Tensor], list[tf.Tensor]] = [], []
    for mask in masks:
        both[not can_be_packed(mask)].append(mask)
    return both


def packed_bytes(mask: tf.Tensor, elements: int) -> int:
    """The bytes of a mask that is packed, of so many elements."""
    sample = _of_a_sample(mask.shape)
    return elements // sample * math.ceil(sample / 8)


def packed(mask: Any) -> tf.Tensor:
    """The bytes of a mask, a row for each sample."""
    sample = _of_a_sample(mask.shape)
    with tf.name_scope("packed_mask"):
        elements = tf.cast(tf.reshape(mask, (-1, sample)), tf.uint8)
        if sample % 8:
            elements = tf.pad(elements, [(0, 0), (0, -sample % 8)])
        words = tf.bitcast(tf.reshape(elements, (-1, math.ceil(sample / 8), 8)), tf.int64)
        highest = tf.bitwise.right_shift(words * _GATHERING, tf.constant(56, tf.int64))
        return tf.cast(tf.bitwise.bitwise_and(highest, tf.constant(255, tf.int64)), tf.uint8)


def unpacked(bytes_of_rows: tf.Tensor, shape: tf.TensorShape) -> tf.Tensor:
    """The mask of some shape that was packed."""
    sample = _of_a_sample(shape)
    with tf.name_scope("replay_of_mask"):
        elements = tf.gather(tf.constant(_BITS), tf.cast(bytes_of_rows, tf.int32))
        if sample % 8:
            elements = tf.reshape(elements, (-1, 8 * math.ceil(sample / 8)))[:, :sample]
        return tf.reshape(elements, [-1 if size is None else size for size in shape])


def _of_a_sample(shape: tf.TensorShape) -> int:
    """Elements of a sample; 0 if they are not known."""
    return shape[1:].num_elements() or 0
