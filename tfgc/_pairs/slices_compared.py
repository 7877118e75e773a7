"""A function in slices of the batch and on the whole, run outside of all tapes and graphs and compared.

1. Rows must keep their bits when the other rows become copies of one of them. Kernel and shapes are the same, so that
   rounding is no excuse: whatever couples the samples shows, however weakly. Where one call differs from an equal one,
   as some kernels of GPUs do, four times as much is let pass.
2. Results in slices are compared with those of the whole batch, and gradients of the first two slices with those of
   both at once. Kernels round by the number of rows. So what may be there of that number, and of where a row stands, is
   the square root of the coarsest precision, in distances relative to norms: 3e-4 for float32.

So the first call needs the memory of one run forward on the whole batch, and of two slices backward. In a graph, where
there are no numbers, and where all rows are equal, it is looked at with random ones: normal, or 0 and 1.
"""

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfgc._pairs.functions import Directions
from tfgc._pairs.pair import Pair

_OPEN = 8  # what stands for a size that is not known


def numbers_for(
    tensors: Sequence[tf.Tensor], cut: Sequence[int], slices: int
) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """The tensors, or random ones like them where they are not known or all rows are equal; and those of two slices."""
    is_known = all(not tf.is_symbolic_tensor(t) for t in tensors)
    if is_known and any(bool(tf.reduce_any(tensors[i][1:] != tensors[i][:1])) for i in cut):
        numbers = list(tensors)
    else:
        draw = np.random.default_rng(0)
        replaced = {i for i, t in enumerate(tensors) if i in cut or tf.is_symbolic_tensor(t)}
        numbers = [_random(t, 2 * slices, draw) if i in replaced else t for i, t in enumerate(tensors)]
    samples = len(numbers[cut[0]])
    return numbers, _rows(numbers, cut, range(2 * samples // min(slices, samples)))


def _random(like: tf.Tensor, samples: int, draw: np.random.Generator) -> tf.Tensor:
    first, *rest = [None] if like.shape.rank == 0 else like.shape.as_list()
    shape = [] if like.shape.rank == 0 else [samples if first is None else first, *(n or _OPEN for n in rest)]
    if like.dtype == tf.string:
        return tf.fill(shape, "")
    if like.dtype.is_floating or like.dtype.is_complex:
        return tf.cast(draw.normal(size=shape), like.dtype)
    return tf.cast(draw.integers(0, 2, shape), like.dtype)


def difference(
    sliced: Any, wholes: Sequence[Pair], cut: Sequence[int], numbers: list[tf.Tensor], few: list[tf.Tensor]
) -> str | None:
    """What differs."""
    whole, first = (Directions(pair.joint) for pair in wholes)
    joint = wholes[0].joint
    samples, count, precision = len(numbers[cut[0]]), len(joint.made), _precision(joint.function.graph)
    results = whole.forward(False)(numbers)
    for i, result in enumerate(results):
        if len(result) != samples:
            return f"result {i} has {len(result)} rows for {samples} samples"
    in_slices = sliced.forward(True)(numbers)[:count]
    for i, (one, other) in enumerate(zip(results, in_slices)):
        if text := _apart(one, other, precision):
            return f"result {i} in {sliced.slices} slices differs from that of the whole batch by {text}"
    del in_slices
    again: list[tf.Tensor] = []
    half = samples // 2
    for kept in (range(half), range(half, samples)):
        others = [i if i in kept else kept[0] for i in range(samples)]
        moved = whole.forward(False)(_rows(numbers, cut, others))
        for i, (one, other) in enumerate(zip(results, moved)):
            part = slice(kept.start, kept.stop)
            by, size = _distance(one[part], other[part])
            again = again or (whole.forward(False)(numbers) if by else [])
            if by and by > 4 * _distance(one, again[i])[0]:
                return f"rows of result {i}, of norm {size:.2g}, move by {by:.2g} when other rows change"
    return _gradients_apart(sliced, first, few, precision)


def _gradients_apart(sliced: Any, whole: Directions, few: list[tf.Tensor], precision: float) -> str | None:
    """How gradients of two slices differ from those of both at once."""
    joint, both = whole.joint, copy.copy(sliced)
    both.slices = 2
    if not joint.through or not joint.sources:
        return None
    draw = np.random.default_rng(1)
    made = whole.forward(True)(few)[: len(joint.made)]
    upstream = [_random(made[i], 0, draw) for i in joint.through]
    found = [dict(_gradients(each, few, upstream)) for each in (whole, both)]
    most = max((float(np.linalg.norm(_plain(g))) for g in found[0].values()), default=0.0)
    for source, one in found[0].items():
        if text := _apart(one, found[1][source], precision, least=1e-2 * most):
            return f"the gradient of {source[0]} in slices differs from that of the whole batch by {text}"
    return None


def _gradients(directions: Directions, tensors: Sequence[tf.Tensor], upstream: Sequence[tf.Tensor]) -> Iterator[Any]:
    """The gradients of all sources by name."""
    joint = directions.joint
    through = tuple(joint.through)
    stateful = directions.forward(True)(tensors)[len(joint.made) :]
    flat = iter(directions.backward(through, False)([*(tensors[k] for k in directions.read), *stateful, *upstream]))
    for source, parts in zip(joint.sources, directions.parts_of(through)):
        is_argument = source.variable is None
        name = f"tensor {source.position} of its arguments" if is_argument else repr(source.variable.name)
        gradient = [next(flat) for _ in range(parts)]
        if gradient:
            yield (
                (name, id(source.variable)),
                gradient[0] if parts == 1 else tf.convert_to_tensor(tf.IndexedSlices(*gradient)),
            )


def _rows(tensors: Sequence[tf.Tensor], cut: Sequence[int], rows: Sequence[int]) -> list[tf.Tensor]:
    return [tf.gather(t, rows) if i in cut else t for i, t in enumerate(tensors)]


def _precision(graph: Any) -> float:
    """How much of a number kernels may round otherwise."""
    kinds = {t.dtype for op in graph.get_operations() for t in op.outputs if t.dtype.is_floating}
    return max((float(np.spacing(k.as_numpy_dtype(1))) ** 0.5 for k in kinds), default=0.0)


def _apart(one: tf.Tensor, other: tf.Tensor, precision: float, least: float = 0.0) -> str | None:
    """By how much two tensors differ, if it is more than rounding."""
    if one.shape != other.shape:
        return f"its shape: {one.shape} and {other.shape}"
    by, size = _distance(one, other)
    return f"{by:.2g}, at a norm of {size:.2g}" if by > precision * max(size, least) else None


def _distance(one: tf.Tensor, other: tf.Tensor) -> tuple[float, float]:
    """The distance of two tensors, and the norm of the first one; what is no number in both is no distance."""
    a, b = _plain(one), _plain(other)
    same = (a == b) | ((a != a) & (b != b))
    with np.errstate(invalid="ignore"):
        by = np.linalg.norm(np.where(same, 0, a - b))
    return (np.inf if np.isnan(by) else float(by)), float(np.linalg.norm(np.where(np.isfinite(a), a, 0)))


def _plain(tensor: tf.Tensor) -> np.ndarray:
    """The numbers of a tensor; other values as numbers that are equal if they are."""
    array = tensor.numpy()
    if array.dtype == object:
        array = np.vectorize(hash, otypes=[float])(array)
    return array.astype("complex128" if array.dtype.kind == "c" else "float64")
