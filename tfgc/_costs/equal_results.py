"""Whether two runs of a function gave the same."""

from collections.abc import Collection, Iterable, Sequence

import numpy as np
import tensorflow as tf

_ROUNDING = {"float64": 1e-14, "float32": 4e-6, "float16": 1 / 32, "bfloat16": 1 / 8}
_ROUNDING_OF_SUMS = {"float64": 1e-12, "float32": 1e-4, "float16": 1 / 16, "bfloat16": 1 / 4}


def equal(a: Sequence[tf.Tensor], b: Sequence[tf.Tensor]) -> bool:
    """Whether tensors are equal but for the order in which sums are taken."""

    def close(x: tf.Tensor, y: tf.Tensor) -> bool:
        if x.shape != y.shape or not x.dtype.is_floating:
            return x.shape == y.shape and bool(tf.reduce_all(x == y))
        error = _ROUNDING[x.dtype.name]
        one, other = (np.asarray(tf.cast(t, "float64")) for t in (x, y))
        return np.allclose(one, other, rtol=error, atol=error * _largest(x), equal_nan=True)

    return len(a) == len(b) and all(map(close, a, b))


def equal_sums(
    whole: Sequence[tf.Tensor], parts: Iterable[Sequence[tf.Tensor]], computed_in: Collection[str] = ()
) -> bool:
    """Whether gradients of weights are the sums of those of the parts of a batch, but for rounding.

    A gradient that is zero, as that of the bias of attention's keys, is rounding alone: a rest of terms that are as
    large as other gradients. Rounding is that of the coarsest dtype of the gradients and of those that they were
    `computed_in`.
    """
    dtypes = ({t.dtype.name for t in whole} | {*computed_in}) & {*_ROUNDING}
    largest = max((_largest(t) for t in whole), default=0.0)
    least = largest * max((_ROUNDING[dtype] for dtype in dtypes), default=0.0)
    share = max((_ROUNDING_OF_SUMS[dtype] for dtype in dtypes), default=0.0)
    return all(_largest(t - tf.add_n(list(p))) <= least + share * _largest(t) for t, p in zip(whole, parts))


def _largest(tensor: tf.Tensor) -> float:
    """The largest number of a tensor that is finite, without its sign."""
    sizes = np.abs(tensor)
    return float(sizes[np.isfinite(sizes)].max(initial=0))
