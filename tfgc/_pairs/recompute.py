"""`tfgc.recompute`: a state-safe `tf.recompute_grad`, by a pair for each kind of call."""

import contextlib
import functools
import reprlib
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfgc._core.recently_used import RecentlyUsed
from tfgc._errors import NotReplayableWarning, OptionError, UnsupportedModelError, check_int, warn
from tfgc._framework import added_losses, layer_settings, private_api, whole_steps
from tfgc._framework.memory_errors import OUT_OF_MEMORY
from tfgc._framework.model_checks import check_backend
from tfgc._framework.surroundings import Surroundings
from tfgc._pairs.as_argument import Itself
from tfgc._pairs.code import Code
from tfgc._pairs.pair import Pair, may_flow, open_where_they_differ
from tfgc._pairs.slices import WHOLE, Slices
from tfgc._pure import obstacles
from tfgc._pure.tensor_packing import Packing
from tfgc._replay import call_checks
from tfgc._replay.block import block

# Kinds of calls that are known, and of each the pairs that differ in sizes and in the variables that gradients flow to.
_MOST_KNOWN, _MOST_ALIKE = 64, 8
# Of one kind so many are traced for their sizes, and then one for all.
_MOST_SIZES = 2
_BRANCHES = (
    "branches of a tf.cond or tf.switch_case in it read different tensors, and eager code has no gradient for what the "
    "branch that is not taken reads. Call it inside of a tf.function, or set one result by tf.where"
)


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
    owner = getattr(fn, "__self__", fn)
    slices = check_int("slices", slices)
    pairs = Pairs(fn, name, Slices(slices, name) if slices > 1 else None)
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
        is_planned = whole_steps.is_here() and slices == 1
        if call_checks.is_empty(args, kwargs) or is_planned:
            return fn(*args, **kwargs)
        is_elsewhere = private_api.in_stateless_scope() or tf.distribute.has_strategy()
        if is_elsewhere and slices > 1:
            raise UnsupportedModelError(f"{name} cannot run in slices in a tf.distribute.Strategy or StatelessScope")
        return (run if is_elsewhere else pairs)(*args, **kwargs)

    # Given as an argument to a `tf.function`, what has `__wrapped__` would be unwrapped.
    vars(recomputed)["__tf_tracing_type__"] = lambda _: Itself(recomputed)
    return recomputed


class Pairs:
    """The pairs of a function, one for each kind of call.

    Args:
        fn: Any function of tensors, a Keras layer or a model.
        name: What messages call it.
        slices: What its pairs run in, if they do.
    """

    def __init__(self, fn: Callable, name: str, slices: Slices | None = None) -> None:
        self._fn, self._name, self._code, self._slices = fn, name, Code(fn), slices
        self._known: RecentlyUsed[Any, list[Pair]] = RecentlyUsed(_MOST_KNOWN)
        self._warned = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        packing = Packing(self._slices.as_tensors((args, kwargs)) if self._slices else (args, kwargs))
        tensors = packing.take_tensors()
        try:
            pair = self._pair(packing, tensors)
        except OUT_OF_MEMORY:
            raise
        except Exception as error:  # The plain run that follows raises what is the user's mistake.
            if self._slices and isinstance(error, UnsupportedModelError):
                raise
            return self._plainly(obstacles.untraceable(error), args, kwargs)
        obstacle = _BRANCHES if tf.executing_eagerly() and pair.branches_differ else pair.joint.unsupported
        if obstacle:
            return self._plainly(obstacle, args, kwargs)
        if private_api.has_tangents([*tensors, *map(tf.convert_to_tensor, pair.joint.variables)]):
            return self._fn(*args, **kwargs)
        return pair((args, kwargs), tensors)

    def _pair(self, packing: Packing, tensors: Sequence[tf.Tensor]) -> Pair:
        """The pair for a call, traced if none is known."""
        flows = tuple(map(may_flow, tensors))
        shapes = self._slices.shapes(packing) if self._slices else packing.shapes
        code, settings, owner = self._code.read()
        around = Surroundings(settings)
        is_known = code is not None and packing.is_hashable
        kind = private_api.in_xla(), code, packing.key, flows, around.key
        known = (self._known.get(kind) or []) if is_known else []
        for pair in known:
            if pair.takes(shapes) and pair.serves():
                if isinstance(self._fn, keras.Layer) and private_api.call_context() is None:
                    added_losses.clear_losses(self._fn)
                return pair
        traced = functools.partial(Pair, self._fn, packing, flows, around, self._name, owner)
        if self._slices:
            traced = functools.partial(self._slices.pair, (code, packing.key, around.key), tensors, packing, traced)
        sizes = {shapes, *(pair.shapes for pair in known)}
        with contextlib.nullcontext() if settings is None else settings.watched():
            pair = None
            if len(sizes) > _MOST_SIZES:
                with contextlib.suppress(ValueError, TypeError):  # of code that computes with a size
                    pair = traced(shapes=open_where_they_differ(sizes))
            pair = pair or traced(shapes=shapes)
        if is_known and pair.may_serve_again:
            self._known[(*kind[:-1], Surroundings(settings).key)] = [pair, *known][:_MOST_ALIKE]
        return pair

    def _plainly(self, obstacle: str, args: tuple, kwargs: dict[str, Any]) -> Any:
        if self._slices:
            raise UnsupportedModelError(f"{self._name} cannot run in slices of the batch: {obstacle}. {WHOLE}")
        if not self._warned:
            self._warned = True
            warn(f"{self._name} is not recomputed: {obstacle}.", NotReplayableWarning)
        return self._fn(*args, **kwargs)
