"""`tfgc.recompute`: a state-safe `tf.recompute_grad` for hand-written loops."""

import functools

import tensorflow as tf

from tfgc._block import Block
from tfgc._errors import OptionError


def recompute(fn):
    """Return `fn`, storing only its inputs for the backward pass.

    A drop-in for `tf.recompute_grad` that gives the gradients of plain
    `fn`: dropout masks, statistics, masks, auxiliary losses, closed-over tensors,
    None and sparse gradients included. It costs one more run of `fn` per
    gradient call; memory inside `fn` is freed until then.

    Args:
        fn: Any function of tensors (in any nesting), a Keras layer or a model.

    Returns:
        A callable with the arguments and results of `fn`, which stays
        reachable as `__wrapped__`. A function that cannot be run twice (raw
        stateful `tf.random`, writes to a plain `tf.Variable`, `tf.py_function`)
        is run as it is, with a `NotReplayableWarning` that names the op.

    Raises:
        ReplayMismatchError: In the backward pass, if the second run gives
            other shapes or dtypes than the first.
        UnsupportedModelError: If called on a symbolic `keras.KerasTensor`.

    Example:
        >>> import tensorflow as tf, tfgc
        >>> square = tfgc.recompute(lambda x: x * x)
        >>> x = tf.constant(3.0)
        >>> with tf.GradientTape() as tape:
        ...     tape.watch(x)
        ...     y = square(x)
        >>> float(tape.gradient(y, x))
        6.0

    Reference: Chen et al. 2016, "Training Deep Nets with Sublinear Memory
    Cost", arXiv:1604.06174.
    """
    if not callable(fn):
        raise OptionError(f"recompute takes a function, a layer or a model, not {fn!r}")
    block = Block(fn, name=getattr(fn, "name", getattr(fn, "__name__", type(fn).__name__)))

    # Keras layers are callables whose attributes are not a function's.
    @functools.wraps(fn, assigned=("__doc__", "__name__", "__module__"), updated=())
    @tf.autograph.experimental.do_not_convert
    def recomputed(*args, **kwargs):
        return block(*args, **kwargs)

    return recomputed
