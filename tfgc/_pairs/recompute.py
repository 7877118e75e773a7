"""`tfgc.recompute`: a state-safe `tf.recompute_grad`, by a pair for each kind of call."""

import dataclasses
import functools
import reprlib
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfgc._errors import OptionError, UnsupportedModelError, check_int
from tfgc._framework import keras_state, model_checks, whole_steps
from tfgc._framework.model_checks import check_backend
from tfgc._pairs.pairs import Pairs
from tfgc._pairs.slices import Slices


def recompute(fn: Callable, *, slices: int = 1) -> Callable:
    """Return `fn`, storing only its inputs for the backward pass.

    A drop-in for `tf.recompute_grad` that gives the gradients of plain
    `fn`: dropout masks, statistics, masks, auxiliary losses, closed-over tensors,
    None and sparse gradients, gradients of gradients. It costs one more run of
    the pure part of `fn` per gradient call; memory inside `fn` is freed until then.

    `fn` and its gradients are traced together, as a `tf.function` is, in eager
    code too, and anew where the code reads something else. What writes state,
    draws from hidden state or has another effect runs once: its results are
    stored, and variables count as they were read. With the graph optimizer off
    the bits are those of `fn` in a `tf.function`.

    With `slices=8` it runs, forward and backward, in eight slices of the batch,
    one after the other, so that one slice of its inside is in memory at a time,
    and gradients are those of the whole batch, up to the order of sums. That is
    for a function that is independent across the batch, such as the towers below
    a contrastive loss or the first layers of a network for large images. It is
    compared with `fn` on the whole batch at the first call of each kind, and in a
    graph on random numbers as it is traced: this needs the memory of one run
    forward on the whole batch, and of two slices backward.

    Args:
        fn: Any function of tensors (in any nesting), a Keras layer or a model.
        slices: In how many parts of about one size it runs at most. Tensors among
            its arguments whose first size is that of the first one are cut. Others
            go whole to each slice, as variables and closed-over tensors do. Each
            result must have the batch in front.

    Returns:
        A callable with the arguments and results of `fn`, which stays
        reachable as `__wrapped__`. A function that cannot be traced (it asks
        for the values of tensors, takes or returns a `tf.TensorArray`) runs as
        it is, with a `NotReplayableWarning` that says why; in eager code so does
        one whose branches read different tensors. In a step that tfgc plans as a
        whole (`fit`, `tfgc.function`) `fn` is a part of that step like others.

    Raises:
        UnsupportedModelError: If called on a symbolic `keras.KerasTensor`, or in a TensorFlow 1 graph. With `slices`
            also if `fn` cannot be traced, updates variables (BatchNormalization), draws random numbers (Dropout), adds
            a loss, or gives something else in slices than on the whole batch.
        OptionError: If `fn` or `slices` is nothing that can be meant.

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
    Cost", arXiv:1604.06174. Slices: Gao et al. 2021, "Scaling Deep Contrastive
    Learning Batch Size under Memory Limited Setup", arXiv:2101.06983.
    """
    if not callable(fn):
        advice = "give the function itself, and call what this returns: tfgc.recompute(fn)(x)"
        if isinstance(fn, list | tuple | dict):
            advice = "give them one at a time"
        raise OptionError(f"recompute takes a function, a layer or a model, not {reprlib.repr(fn)}: {advice}")
    if isinstance(fn, keras.Layer):
        check_backend(f"{fn.name!r}")
    name = getattr(fn, "name", getattr(fn, "__name__", type(fn).__name__))
    slices = check_int("slices", slices)
    pairs = Pairs(fn, name, slices=Slices(slices, name) if slices > 1 else None)

    # Keras layers are callables whose attributes are not a function's.
    @functools.wraps(fn, assigned=("__doc__", "__name__", "__module__"), updated=())
    @tf.autograph.experimental.do_not_convert
    def recomputed(*args: Any, **kwargs: Any) -> Any:
        model_checks.refuse_tf1_graph(f"the recomputed {name!r}")
        is_planned = whole_steps.is_here() and slices == 1
        if model_checks.is_empty(args, kwargs) or is_planned:
            return fn(*args, **kwargs)
        if slices > 1 and (keras_state.stateless_scope_here() or tf.distribute.has_strategy()):
            raise UnsupportedModelError(f"{name} cannot run in slices in a tf.distribute.Strategy or StatelessScope")
        return pairs(*args, **kwargs)

    # Given as an argument to a `tf.function`, what has `__wrapped__` would be unwrapped.
    vars(recomputed)["__tf_tracing_type__"] = lambda _: Itself(recomputed)
    return recomputed


@dataclasses.dataclass(frozen=True)
class Itself(tf.types.experimental.TraceType):
    """How `tf.function` takes a recomputed function as an argument: as a value, each of which gets a new trace."""

    function: Callable

    def is_subtype_of(self, other: Any) -> bool:
        return self == other

    def most_specific_common_supertype(self, others: Any) -> "Itself | None":
        return self if all(self == other for other in others) else None

    def placeholder_value(self, placeholder_context: Any) -> Callable:
        return self.function
