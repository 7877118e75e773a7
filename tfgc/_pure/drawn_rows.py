"""Random numbers for a slice of a batch: those that the whole batch would get in its rows.

What is drawn from a seed is a sequence that TensorFlow's generator counts: each count gives four numbers, or two of 64
bits, whatever came before. So a slice starts at the count where the whole batch comes to its rows. Nothing is stored,
and no slice draws more than its share. XLA makes normal numbers in an order that depends on how many there are.
"""

import contextlib
import functools
from collections.abc import Iterable
from typing import Any

import keras
import tensorflow as tf

from tfgc._framework import operation_hooks
from tfgc._pure import obstacles, random_draws

# Those that make as many numbers of each count, and of these the ones that do so under XLA.
_TYPES = frozenset(["StatelessRandomUniformV2", "StatelessRandomNormalV2"])
_TYPES_OF_XLA = frozenset(["StatelessRandomUniformV2"])
_SEEDS = frozenset(["StatelessRandomGetKeyCounter", "StatelessRandomGetAlg", "StatelessRandomGetKeyCounterAlg"])


def is_seed(variable: keras.Variable) -> bool:
    """Whether a variable holds the seed of the next draw, which no sample of a batch changes."""
    return "seed_generator" in variable.path


def obstacle(operations: Iterable[tf.Operation], samples: int | None, xla: bool) -> str | None:
    """Why what operations on so many samples draw cannot be drawn for a slice alone; None if it can, or is nothing."""
    types = _TYPES_OF_XLA if xla else _TYPES
    for op in operations:
        if op.type in random_draws.TYPES:
            return "draws random numbers from hidden state"
        if obstacles.functions_called(op.node_def) and _drawing_functions(op.graph):
            return "draws random numbers in a loop or a branch"
        if op.type in _SEEDS or not random_draws.draws([op]):
            continue
        made = op.outputs[0]
        if not made.shape.rank or made.shape[0] != samples:
            return "draws random numbers that are not a row for each sample of a batch"
        if op.type not in types or not _can_be_skipped(op.type, made.dtype):
            where = " under XLA" if op.type in _TYPES else ""
            return f"draws random numbers by {op.type}, of which a slice{where} cannot draw its rows alone"
    return None


def _drawing_functions(graph: Any) -> bool:
    functions = graph.as_graph_def().library.function
    return any(random_draws.is_seeded(node.op) for function in functions for node in function.node_def)


def rows_from(start: Any) -> contextlib.AbstractContextManager:
    """A context in which what is drawn from seeds are the rows from `start` on of what the whole batch would draw."""
    if isinstance(start, int) and start == 0:
        return contextlib.nullcontext()
    return operation_hooks.operations_replaced(_TYPES, functools.partial(_rows, start))


def _rows(start: Any, kind: str, inputs: list[tf.Tensor], dtype: tf.DType) -> tf.Tensor:
    shape, key, counter, alg = inputs
    draw = functools.partial(getattr(tf.raw_ops, kind), key=key, alg=alg, dtype=dtype)
    known, numbers = operation_hooks.shape_of_value(shape), 2 if dtype.size == 8 else 4
    row = None if known.rank is None else known[1:].num_elements()
    if row is None:
        row = tf.reduce_prod(tf.cast(shape[1:], tf.int64))
    first = tf.cast(start, tf.int64) * row
    if isinstance(row, int) and row % numbers == 0:
        return draw(shape=shape, counter=_skipped(counter, first // numbers))
    size = known.num_elements()
    if size is None:
        size = tf.reduce_prod(tf.cast(shape, tf.int64))
    flat = draw(shape=[size + numbers], counter=_skipped(counter, first // numbers))
    made = tf.reshape(tf.slice(flat, [first % numbers], [size]), shape)
    made.set_shape(known)
    return made


def _skipped(counter: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
    """A counter of two words, the lower one first, so many counts later."""
    low = counter[0] + tf.cast(counts, tf.uint64)
    return tf.stack([low, counter[1] + tf.cast(low < counter[0], tf.uint64)])


@functools.cache
def _can_be_skipped(kind: str, dtype: tf.DType) -> bool:
    """Whether the generator of this machine counts as described above, which no documentation says."""
    with tf.init_scope():
        key, counter = tf.raw_ops.StatelessRandomGetKeyCounter(seed=[3, 5])
        alg = tf.raw_ops.StatelessRandomGetAlg()
        whole = getattr(tf.raw_ops, kind)(shape=[9, 5], key=key, counter=counter, alg=alg, dtype=dtype)
        part = _rows(3, kind, [tf.constant([6, 5]), key, counter, alg], dtype)
        return bool(tf.reduce_all(whole[3:] == part))
