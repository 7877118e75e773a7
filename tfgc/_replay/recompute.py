"""`tfgc.recompute`: a state-safe `tf.recompute_grad` for hand-written loops."""

import dataclasses
import functools
import reprlib
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfgc._errors import OptionError
from tfgc._framework import layer_settings
from tfgc._framework.model_checks import check_backend
from tfgc._replay import call_checks
from tfgc._replay.block import block


def recompute(fn: Callable) -> Callable:
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
        `tf.random` numbers that are many beside what is computed, writes to a
        plain `tf.Variable`, `tf.py_function`) is run as it is, with a
        `NotReplayableWarning` that names the op.

    Raises:
        ReplayMismatchError: In the backward pass, if the second run gives
            other shapes or dtypes than the first.
        UnsupportedModelError: If called on a symbolic `keras.KerasTensor`, or in a TensorFlow 1 graph.

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
        advice = "give the function itself, and call what this returns: tfgc.recompute(fn)(x)"
        if isinstance(fn, list | tuple | dict):
            advice = "give them one at a time"
        raise OptionError(f"recompute takes a function, a layer or a model, not {reprlib.repr(fn)}: {advice}")
    if isinstance(fn, keras.Layer):
        check_backend(f"{fn.name!r}")
    name = getattr(fn, "name", getattr(fn, "__name__", type(fn).__name__))
    owner = getattr(fn, "__self__", fn)
    options: dict[str, Any] = {"name": name, "owner": owner if isinstance(owner, keras.Layer) else None}
    if isinstance(fn, keras.Layer):
        settings = layer_settings.Settings([fn])
        # Not the layer itself, whose attributes the decorator would copy.
        run = block(settings.watched()(lambda *args, **kwargs: fn(*args, **kwargs)), **options, settings=settings)
    else:
        run = block(fn, **options)

    # Keras layers are callables whose attributes are not a function's.
    @functools.wraps(fn, assigned=("__doc__", "__name__", "__module__"), updated=())
    @tf.autograph.experimental.do_not_convert
    def recomputed(*args: Any, **kwargs: Any) -> Any:
        call_checks.refuse_tf1_graph(f"the recomputed {name!r}")
        return fn(*args, **kwargs) if call_checks.is_empty(args, kwargs) else run(*args, **kwargs)

    # Given as an argument to a `tf.function`, what has `__wrapped__` would be unwrapped.
    vars(recomputed)["__tf_tracing_type__"] = lambda _: _Itself(recomputed)
    return recomputed


@dataclasses.dataclass(frozen=True)
class _Itself(tf.types.experimental.TraceType):
    """How `tf.function` takes a recomputed function as an argument: as a value, each of which gets a new trace."""

    function: Callable

    def is_subtype_of(self, other: Any) -> bool:
        return self == other

    def most_specific_common_supertype(self, others: Any) -> "_Itself | None":
        return self if all(self == other for other in others) else None

    def placeholder_value(self, placeholder_context: Any) -> Callable:
        return self.function
