"""A batch in slices: the gradients of each slice are added to a sum, and then freed.

Invariant: slices come one after the other, and a slice's share in the loss is its share of the samples; so the sums are
the gradients of the whole batch up to rounding, where the loss is a mean over samples that do not see one another.
The first slice has what is left over, so that the others are of one size: in a graph they are one loop.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from tfgc._errors import OptionError
from tfgc._framework import private_api
from tfgc._replay.forward_backward import fence

# A scalar, and a gradient or None for each weight.
Sums: TypeAlias = tuple[tf.Tensor, list[Any]]


@dataclasses.dataclass(frozen=True)
class Slices:
    """Where a batch is cut: numbers, or tensors of a graph where the size of the batch is open.

    Attributes:
        samples: In the batch.
        size: Of a slice.
        count: Slices.
        first: Samples in the first one.
    """

    samples: Any
    size: Any
    count: Any
    first: Any

    def part(self, i: Any) -> tuple[Any, Any]:
        """Where slice `i` starts and how many samples it has; not for the first one."""
        return self.first + (i - 1) * self.size, self.size


def slices(batch: Any, most: int) -> Slices:
    """Cut a batch into at most so many slices of about one size.

    Raises:
        OptionError: If an array of the batch has no samples in front, or not as many as the others.
    """
    arrays = [x for x in tf.nest.flatten(batch) if x is not None]
    for x in arrays:
        if not isinstance(x, tf.Tensor) or not x.shape.rank:
            raise OptionError(
                f"micro_batches: {x!r} cannot be cut into slices of the batch; give arrays with the batch in front"
            )
    known = {x.shape[0] for x in arrays} - {None}
    if len(known) > 1:
        raise OptionError(f"micro_batches: the arrays of the batch have {sorted(known)} samples; give as many of each")
    n: Any = known.pop() if known else tf.shape(arrays[0])[0]
    biggest = max if isinstance(n, int) else tf.maximum
    size = biggest(-(-n // most), 1)
    count = biggest(-(-n // size), 1)
    return Slices(n, size, count, n - (count - 1) * size)


def summed(batch: Any, most: int, step: Callable[[Any, tf.Tensor], Sums]) -> Sums:
    """Run a step on each slice, and add what it gives.

    Args:
        batch: Arrays in any structure, the samples in front; None where there is none.
        most: How many slices.
        step: Takes a slice and its share of the batch, a scalar; gives a share of the loss, and gradients.
    """
    cut = slices(batch, most)
    share = _share(cut.first, cut.samples)
    sums = step(_cut(batch, 0, cut.first), share)
    if isinstance(cut.count, int) and cut.count == 1:
        return sums
    rest = _share(cut.size, cut.samples)
    sparse = any(isinstance(g, tf.IndexedSlices) for g in sums[1])
    # What a loop that XLA compiles holds cannot grow, and optimizers tell the rows of sparse gradients apart.
    if tf.executing_eagerly() or (sparse and private_api.in_xla()):
        for i in range(1, cut.count):
            with fence([sums[0], *_tensors(sums[1])]) as wait:
                part = tf.nest.map_structure(lambda x: x if x is None else wait(x), _cut(batch, *cut.part(i)))
            loss, gradients = step(part, rest)
            sums = sums[0] + loss, [_plus(*pair) for pair in zip(sums[1], gradients)]
        return sums
    return _loop(batch, cut, rest, step, sums)


def _loop(batch: Any, cut: Slices, share: tf.Tensor, step: Callable, first: Sums) -> Sums:
    """All slices but the first, which gave `first`, as one loop of a graph."""
    gradients = first[1]
    packed = [first[0], *_tensors(gradients)]

    def body(i: tf.Tensor, *sums: tf.Tensor) -> tuple:
        loss, found = step(_cut(batch, *cut.part(i)), share)
        before = _like(gradients, sums[1:])
        after = [sums[0] + loss, *_tensors([_plus(*pair) for pair in zip(before, found)])]
        with tf.control_dependencies(after):  # All of the next slice waits for its number.
            return tf.identity(i + 1), *after

    with tf.control_dependencies(packed):
        start = tf.identity(tf.constant(1))
    sparse = any(isinstance(g, tf.IndexedSlices) for g in gradients)
    lengths = [tf.TensorShape([None, *t.shape[1:]]) if sparse and t.shape.rank else t.shape for t in packed]
    _, loss, *sums = tf.while_loop(
        lambda i, *_: i < cut.count, body, [start, *packed], [tf.TensorShape([]), *lengths], parallel_iterations=1
    )
    return loss, _like(gradients, sums)


def _cut(batch: Any, start: Any, size: Any) -> Any:
    def part(x: Any) -> Any:
        if x is None:
            return None
        rest = [-1 if length is None else length for length in x.shape[1:]]  # XLA wants to know the sizes.
        return tf.slice(x, [start] + [0] * len(rest), [size, *rest])

    return tf.nest.map_structure(part, batch)


def _share(samples: Any, of: Any) -> tf.Tensor:
    return tf.cast(samples / of, "float32")


def _plus(a: Any, b: Any) -> Any:
    if a is None or b is None:
        return b if a is None else a
    if isinstance(a, tf.IndexedSlices):
        return tf.IndexedSlices(tf.concat([a.values, b.values], 0), tf.concat([a.indices, b.indices], 0), a.dense_shape)
    return a + b


def _tensors(gradients: Sequence[Any]) -> list[tf.Tensor]:
    """What gradients consist of: tensors, of a sparse one its values and their places."""
    parts = [(g.values, g.indices) if isinstance(g, tf.IndexedSlices) else (g,) for g in gradients if g is not None]
    return [tensor for part in parts for tensor in part]


def _like(gradients: Sequence[Any], tensors: Sequence[tf.Tensor]) -> list[Any]:
    """The reverse of `_tensors`, for gradients of the same kinds."""
    left = iter(tensors)

    def made(gradient: Any) -> Any:
        if isinstance(gradient, tf.IndexedSlices):
            return tf.IndexedSlices(next(left), next(left), gradient.dense_shape)
        return None if gradient is None else next(left)

    return [made(g) for g in gradients]
