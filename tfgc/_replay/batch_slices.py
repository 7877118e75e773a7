"""Run a function on slices of a batch, one after the other, and join what it gives.

Invariant: the results of a slice are written into one buffer, or added to one sum, and freed before the next one
starts. The first slice has what is left over, so that the others are of one size: in a graph they are one loop. It
shows which results there are, so that the loop can be built.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from tfgc._errors import UnsupportedModelError
from tfgc._framework import private_api, slice_rows
from tfgc._replay.fence import fence

# What a slice gives: tensors with its samples in front, which are joined, and gradients, which are added; or Nones.
Results: TypeAlias = tuple[list[Any], list[Any]]


@dataclasses.dataclass(frozen=True)
class Cut:
    """Where a batch is cut: numbers, or tensors of a graph where the size of the batch is open."""

    samples: Any  # in the batch
    size: Any  # of a slice
    count: Any  # of slices
    first: Any  # samples in the first one

    def start(self, i: Any) -> Any:
        """Where slice `i` starts; not for the first one."""
        return self.first + (i - 1) * self.size


def cut(array: tf.Tensor, most: int) -> Cut:
    """Cut a batch, of which `array` is a part, into at most so many slices of about one size."""
    n: Any = array.shape[0] if array.shape[0] is not None else tf.shape(array)[0]
    biggest = max if isinstance(n, int) else tf.maximum
    size = biggest(-(-n // most), 1)
    count = biggest(-(-n // size), 1)
    return Cut(n, size, count, n - (count - 1) * size)


def run(batch: Any, most: int, step: Callable[[Any, Any], Results]) -> Results:
    """What one step gives on a batch, of steps on so many slices, which take a slice and where in the batch it starts.

    The batch is of arrays in any structure, the samples in front; None where there is none.
    """
    cuts = cut(next(x for x in tf.nest.flatten(batch) if x is not None), most)
    rows, sums = first = step(_part(batch, 0, cuts.first), 0)
    if isinstance(cuts.count, int) and cuts.count == 1:
        return rows, sums
    even = isinstance(cuts.samples, int) and cuts.first == cuts.size
    places = slice_rows.places(sums, cuts.size, cuts.samples) if even else []
    if not places:
        return _joined(batch, cuts, step, first)
    rows, left = _joined(
        batch, cuts, lambda *part: _rows_apart(step(*part), places, cuts.size), _rows_apart(first, places, cuts.size)
    )
    factors = iter(rows[len(first[0]) :])
    for i in places:
        left[i] = slice_rows.product(next(factors), next(factors), sums[i].dtype)
    return rows[: len(first[0])], left


def _rows_apart(made: Results, places: Sequence[int], samples: int) -> Results:
    """The results of a slice, with rows in place of the products of rows."""
    rows, sums = made
    factors = slice_rows.rows([sums[i] for i in places], samples)
    return [*rows, *factors], [None if i in places else gradient for i, gradient in enumerate(sums)]


def _joined(batch: Any, cuts: Cut, step: Callable[[Any, Any], Results], first: Results) -> Results:
    """All slices, of which the first one has run."""
    rows, sums = first
    in_xla, sparse = private_api.in_xla(), any(isinstance(g, tf.IndexedSlices) for g in sums)
    if not tf.executing_eagerly() and not in_xla:
        return _loop(batch, cuts, step, rows, sums)
    joined = _with_room(rows, cuts.samples - cuts.first)
    # What a loop that XLA compiles holds cannot grow, and optimizers tell the rows of sparse gradients apart.
    if in_xla and not sparse:
        return _loop(batch, cuts, step, joined, sums)
    if not isinstance(cuts.count, int):
        raise UnsupportedModelError(
            "a segment with sparse gradients, such as those of an Embedding, runs in slices of the batch under XLA "
            "only if the size of the batch is known: fix it with dataset.batch(n, drop_remainder=True)"
        )
    for i in range(1, cuts.count):
        with fence(_tensors([*joined, *sums])) as wait:
            part = tf.nest.map_structure(lambda x: x if x is None else wait(x), _part(batch, cuts.start(i), cuts.size))
        joined, sums = _added(joined, sums, cuts.start(i), step(part, cuts.start(i)))
    return joined, sums


def _loop(batch: Any, cuts: Cut, step: Callable, joined: list[Any], sums: list[Any]) -> Results:
    """All slices but the first, as one loop of a graph; `joined` and `sums` are what the first one gave.

    Under XLA `joined` has room for all rows; else the first iteration makes it, see `slice_rows.with_room`.
    """
    given = [*joined, *sums]
    packed, in_xla = _tensors(given), private_api.in_xla()
    buffers = len(_tensors(joined))

    def body(i: tf.Tensor, *tensors: tf.Tensor) -> tuple:
        before = _like(given, tensors)
        if not in_xla:
            room = tf.where(i == 1, cuts.samples - cuts.first, 0)
            before[: len(joined)] = _with_room(before[: len(joined)], room)
        made = step(_part(batch, cuts.start(i), cuts.size), cuts.start(i))
        rows, found = _added(before[: len(joined)], before[len(joined) :], cuts.start(i), made)
        after = _tensors([*rows, *found])
        with tf.control_dependencies(after):  # All of the next slice waits for its number.
            return tf.identity(i + 1), *after

    with tf.control_dependencies(packed):
        start = tf.identity(tf.constant(1))
    growing = len(packed) if any(isinstance(g, tf.IndexedSlices) for g in sums) else 0 if in_xla else buffers
    open_sizes = [tf.TensorShape([None, *t.shape[1:]]) if t.shape.rank else t.shape for t in packed[:growing]]
    shapes = [*open_sizes, *(t.shape for t in packed[growing:])]
    _, *left = tf.while_loop(
        lambda i, *_: i < cuts.count, body, [start, *packed], [tf.TensorShape([]), *shapes], parallel_iterations=1
    )
    for buffer in left[:buffers]:
        buffer.set_shape([cuts.samples if isinstance(cuts.samples, int) else None, *buffer.shape[1:]])
    made = _like(given, left)
    return made[: len(joined)], made[len(joined) :]


def _with_room(rows: list[Any], more: Any) -> list[Any]:
    return [None if made is None else slice_rows.with_room(made, more) for made in rows]


def _added(joined: list[Any], sums: list[Any], start: Any, made: Results) -> Results:
    """Results of all slices so far, with those of one more."""
    rows, found = made
    written = [None if row is None else slice_rows.write(buffer, start, row) for buffer, row in zip(joined, rows)]
    return written, [_plus(*pair) for pair in zip(sums, found)]


def _part(batch: Any, start: Any, size: Any) -> Any:
    def part(x: Any) -> Any:
        if x is None:
            return None
        rest = [-1 if length is None else length for length in x.shape[1:]]  # XLA wants to know the sizes.
        return tf.slice(x, [start] + [0] * len(rest), [size, *rest])

    return tf.nest.map_structure(part, batch)


def _plus(a: Any, b: Any) -> Any:
    if a is None or b is None:
        return b if a is None else a
    if isinstance(a, tf.IndexedSlices):
        return tf.IndexedSlices(tf.concat([a.values, b.values], 0), tf.concat([a.indices, b.indices], 0), a.dense_shape)
    return a + b


def _tensors(results: Sequence[Any]) -> list[tf.Tensor]:
    """What results consist of: tensors, of a sparse gradient its values and their places."""
    parts = [(r.values, r.indices) if isinstance(r, tf.IndexedSlices) else (r,) for r in results if r is not None]
    return [tensor for part in parts for tensor in part]


def _like(results: Sequence[Any], tensors: Sequence[tf.Tensor]) -> list[Any]:
    """The reverse of `_tensors`, for results of the same kinds."""
    left = iter(tensors)

    def made(result: Any) -> Any:
        if isinstance(result, tf.IndexedSlices):
            return tf.IndexedSlices(next(left), next(left), result.dense_shape)
        return None if result is None else next(left)

    return [made(result) for result in results]
