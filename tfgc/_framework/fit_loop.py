"""The batch size of the `fit` that runs now, which the step that it traces does not show.

Keras traces its training function with an open batch, since the last batch of an epoch may be smaller. The size
stands in the data adapter of the running `fit`, a local variable of Keras's. Known weakness: a function that
`Dataset.map` runs on batches is taken for one that keeps their number of samples.
"""

import contextlib
import itertools
import re
import sys
import traceback
import weakref
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfgc._framework import operation_seeds, python_random

# Datasets that hand on batches as they come.
_SAME_BATCHES = re.compile(
    r"_?(Prefetch|Map|IgnoreErrors|ParallelMap|Cache|Memory|Repeat|Take|Skip|Filter|Shard|Shuffle|Options|Model"
    r"|MaxIntraOp|PrivateThread|Assert)"
)
_BATCHING = re.compile(r"_?(Parallel)?(PaddedBatch|Batch)Dataset")
# Datasets that hand on batches of several others, and at which of its inputs these begin.
_IN_TURN = {"_ConcatenateDataset": 0, "_DirectedInterleaveDataset": 1}

# By the data adapter of a `keras.utils.PyDataset`: samples in its first batch.
_first_rows: weakref.WeakKeyDictionary[Any, int | None] = weakref.WeakKeyDictionary()


def batch_size() -> int | None:
    """Samples in a batch of the `fit` that is running, on one replica; None if none runs or its data does not say."""
    size = next((size for size in map(_of, _adapters()) if size is not None), None)
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    return None if size is None else -(-size // replicas)


def _adapters() -> Iterator[Any]:
    """The data adapters of running calls of `fit`, the innermost first."""
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    # In a replica of a strategy, which has a thread of its own, those in all threads.
    starts = sys._current_frames().values() if replicas > 1 else [sys._getframe()]
    for frame, _ in itertools.chain.from_iterable(map(traceback.walk_stack, starts)):
        if frame.f_code.co_name == "fit" and frame.f_globals.get("__name__", "").startswith("keras."):
            adapter = getattr(frame.f_locals.get("epoch_iterator"), "data_adapter", None)
            if adapter is not None:
                yield adapter


def _of(adapter: Any) -> int | None:
    if adapter.batch_size is not None:
        return int(adapter.batch_size)
    for batch in getattr(adapter, "_first_batches", ()):  # a generator, whose first batches Keras looks at
        return _rows(batch)
    if getattr(adapter, "py_dataset", None) is not None:
        if adapter not in _first_rows:
            _first_rows[adapter] = _rows_of_first(adapter)
        return _first_rows[adapter]
    return _of_dataset(getattr(adapter, "_dataset", None))


def _rows_of_first(adapter: Any) -> int | None:
    """Samples in the first batch of a `keras.utils.PyDataset`, which the user's code makes once more for this."""
    # Keras looks at its first batches, too, and keeps their shapes with an open batch. Workers draw meanwhile.
    with contextlib.ExitStack() as stack:
        stack.enter_context(tf.init_scope())
        if not adapter.enqueuer:
            stack.enter_context(python_random.streams_put_back())
            stack.enter_context(operation_seeds.eager_ones_put_back())
        return _rows(adapter.py_dataset[0])


def _rows(batch: Any) -> int | None:
    return next((int(part.shape[0]) for part in tf.nest.flatten(batch) if part is not None), None)


def _of_dataset(dataset: Any) -> int | None:
    kind = type(dataset).__name__
    if _BATCHING.fullmatch(kind):
        size = tf.get_static_value(getattr(dataset, "_batch_size", None))
        return None if size is None else int(size)
    if kind == "_ZipDataset":
        sizes = set(map(_of_dataset, dataset._inputs()))
        return sizes.pop() if len(sizes) == 1 else None
    if kind in _IN_TURN:
        sizes = list(map(_of_dataset, dataset._inputs()[_IN_TURN[kind] :]))
        return max(filter(None, sizes)) if all(sizes) else None
    return _of_dataset(dataset._inputs()[0]) if _SAME_BATCHES.match(kind) and dataset._inputs() else None
