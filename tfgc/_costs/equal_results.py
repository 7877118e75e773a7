"""Whether two runs of a function gave the same."""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

_ROUNDING = {"float64": 1e-14, "float32": 4e-6, "float16": 1 / 32, "bfloat16": 1 / 8}


def equal(a: Sequence[tf.Tensor], b: Sequence[tf.Tensor]) -> bool:
    """Whether tensors are equal but for the order in which sums are taken."""

    def close(x: tf.Tensor, y: tf.Tensor) -> bool:
        if x.shape != y.shape or not x.dtype.is_floating:
            return x.shape == y.shape and bool(tf.reduce_all(x == y))
        error = _ROUNDING[x.dtype.name]
        one, other = (np.asarray(tf.cast(t, "float64")) for t in (x, y))
        finite = np.isfinite(one) & np.isfinite(other)
        largest = np.abs(one[finite]).max(initial=0)
        same = np.allclose(one[finite], other[finite], rtol=error, atol=error * largest)
        return same and np.array_equal(one[~finite], other[~finite], equal_nan=True)

    return len(a) == len(b) and all(map(close, a, b))
