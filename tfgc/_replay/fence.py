"""What makes both runs of a segment wait: the second one for gradients, and draws of the first for its inputs.

Without it TensorFlow and XLA would merge the runs, or run what reads nothing large at the start of the step. Results of
the first run are behind a barrier where XLA would store what it computes them from.
"""

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfgc._costs import xla_products
from tfgc._framework import graph_building, private_api, shared_constants
from tfgc._framework.internals import gen_xla_ops

# What has fewer elements may be held from the first run on.
_LARGE = 1024


@contextlib.contextmanager
def fence(
    upstream: Sequence[tf.Tensor], awaited: Sequence[tf.Tensor] = ()
) -> Iterator[Callable[[tf.Tensor], tf.Tensor]]:
    """Yield a function that makes a tensor wait until `upstream` is there, and under XLA the numbers `awaited`."""
    if tf.executing_eagerly():
        yield tf.identity
    elif private_api.in_xla():
        yield _waits_in_xla([*map(tf.reduce_sum, upstream), *map(graph_building.capture, awaited)])
    else:
        with shared_constants.waiting(upstream):
            yield _waits


def _waits(tensor: tf.Tensor) -> tf.Tensor:
    """A tensor that waits as the context around says, where it is large behind what Grappler does not look through.

    Grappler drops an identity, and its control edges where other operands wait for the same. What it then multiplies by
    a constant first, as inside of a GELU, does not wait: it is made in the first run, and held until the replay.
    """
    few = (tensor.shape.num_elements() or _LARGE) < _LARGE
    if few or not tensor.dtype.is_floating:
        return tf.identity(tensor)
    return tf.raw_ops.PlaceholderWithDefault(input=tensor, shape=tensor.shape)


def _waits_in_xla(scalars: Sequence[tf.Tensor]) -> Callable[[tf.Tensor], tf.Tensor]:
    """A function that makes a tensor wait for numbers where XLA, which drops control dependencies, compiles."""
    # XLA cannot know that this is zero, and unlike 0 * upstream it stays zero when a gradient overflows.
    total = tf.add_n([tf.cast(tf.abs(x), tf.float32) for x in scalars])
    never = tf.math.is_nan(total) & tf.math.is_inf(total)
    return lambda x: x | never if x.dtype.is_bool else x + tf.cast(never, x.dtype)


def started(arguments: Sequence[tf.Tensor]) -> contextlib.AbstractContextManager:
    """A context in which a first run draws when its arguments are there; `seeds_in_time` has that of XLA."""
    if tf.executing_eagerly() or private_api.in_xla():
        return contextlib.nullcontext()
    return shared_constants.in_time(arguments)


def seeds_in_time(arguments: Sequence[tf.Tensor], values: list[tf.Tensor]) -> list[tf.Tensor]:
    """The values of variables that a first run reads. Under XLA seeds among them wait for its arguments.

    Else XLA draws for all segments at the start of the step, where nothing that it waits for is missing, and holds what
    was drawn until they run: eleven masks of a ViT, 0.2 GB at a batch of 16.
    """
    if not private_api.in_xla() or not any(x.dtype.is_integer for x in values):
        return values
    awaited = [x for x in arguments if x.dtype.is_floating]
    if not awaited:
        return values
    wait = _waits_in_xla([tf.reduce_sum(tf.reshape(x, [-1])[:1]) for x in awaited])
    return [wait(x) if x.dtype.is_integer else x for x in values]


def waiting(
    inputs: Sequence[tf.Tensor],
    arguments: int,
    wait: Callable[[tf.Tensor], tf.Tensor],
    layouts: Collection[int],
) -> list[tf.Tensor]:
    """What a replay runs on: so many arguments, which wait, and the values of variables.

    Under XLA seeds wait, too: else it merges what both runs draw of them, and keeps the masks of the first. `layouts`,
    positions of arguments, do not: there sizes must be known when the step is compiled, and may depend on them.
    """
    in_xla = private_api.in_xla()
    # A copy for each argument, since one tensor may be passed twice.
    held = [graph_building.capture(x) if in_xla and i in layouts else wait(x) for i, x in enumerate(inputs[:arguments])]
    return held + [wait(x) if in_xla and x.dtype.is_integer else graph_building.capture(x) for x in inputs[arguments:]]


def waiting_for_all(
    upstream: Sequence[Any], held: Sequence[tf.Tensor], wait: Callable[[tf.Tensor], tf.Tensor]
) -> list[Any]:
    """Upstream gradients of a replay of what is `held`, of which numbers, or one for each sample, wait for all.

    That of an added loss is there at the start of the backward pass, and what is made of it is as large as an
    activation where the loss was a mean. Where TensorFlow knows its value and all sizes it computes that once, and
    keeps one for all replays, as long as they do not wait for different operations. XLA schedules by itself.
    """
    if len(upstream) < 2 or tf.executing_eagerly() or private_api.in_xla():
        return [*upstream]
    there = [u for u in upstream if isinstance(u, tf.Tensor)]
    is_known = all(t.shape.is_fully_defined() for t in (*there, *held))
    waits = {id(u) for u in there if (u.shape.rank or 0) < 2 and not (is_known and shared_constants.is_folded(u))}
    return [wait(u) if id(u) in waits else u for u in upstream]


def in_memory(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Results of a first run. Under XLA those that products in parts make are behind a barrier, which stores them.

    Else XLA keeps the parts for the replays that read them, and adds them up there: in a GPT four times the bytes of
    each checkpoint. Other results have no barrier: it made plans larger, as one before each replay did, since what else
    reads the tensor kept another copy of it.
    """
    barrier: Any = gen_xla_ops.xla_optimization_barrier
    in_xla = private_api.in_xla()
    in_parts = [in_xla and t.dtype.is_floating and xla_products.is_made_of_parts(t) for t in tensors]
    return [barrier([t])[0] if is_behind else t for t, is_behind in zip(tensors, in_parts)]
