"""Whether a function may run in slices of the batch, looked at once for each kind of calls: first at its trace.

Then it runs in slices and on the whole, outside of all tapes and graphs:

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
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfgc._core.recently_used import RecentlyUsed
from tfgc._error_texts import one_line
from tfgc._errors import UnsupportedModelError
from tfgc._framework import isolated_traces
from tfgc._pairs.functions import Directions
from tfgc._pairs.pair import Pair

_MOST_KNOWN = 64
_OPEN = 8  # what stands for a size that is not known
ADVICE = "Leave what mixes or counts samples out of it, or call recompute without slices"
Tensors = Sequence[tf.Tensor]


class Checks:
    """The checks of one function."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._known: RecentlyUsed[Any, bool] = RecentlyUsed(_MOST_KNOWN)

    def __call__(
        self, kind: Hashable, pair: Pair, cut: Sequence[int], tensors: Tensors, made: Callable[..., Pair]
    ) -> None:
        """Raise if a pair that runs in slices of these tensors differs from what is `made` of the whole batch."""
        sources = tuple((source.position, id(source.variable)) for source in pair.joint.sources)
        if (kind, sources) in self._known:
            return
        sliced: Any = pair.directions
        numbers = isolated_traces.in_own_thread(lambda: _numbers([*tensors, *pair.outer], cut, sliced.slices))
        samples = len(numbers[cut[0]])
        if samples < 2:
            return
        rows = range(2 * samples // min(sliced.slices, samples))  # of two slices
        few = isolated_traces.in_own_thread(lambda: _of_rows(numbers, cut, rows))
        shapes = [tuple(tuple(t.shape) for t in some[: len(tensors)]) for some in (numbers, few)]
        whole, first = (made(shapes=each).joint for each in shapes)
        precision = _precision(whole.function.graph)

        def compared() -> str | None:
            found = _results_apart(sliced, Directions(whole), cut, numbers, precision)
            return found or _gradients_apart(sliced, Directions(first), few, precision)

        try:
            found = isolated_traces.in_own_thread(compared)
        except tf.errors.OpError as error:
            if kind in self._known:
                return
            raise UnsupportedModelError(
                f"{self._name} cannot be compared in slices and on the whole batch ({one_line(error)}). In a graph "
                "that is done on random numbers: call it once in eager code, on a batch"
            ) from error
        if found:
            raise UnsupportedModelError(f"{self._name} is not independent across the batch: {found}. {ADVICE}")
        self._known[kind] = self._known[kind, sources] = True


def _numbers(tensors: Tensors, cut: Sequence[int], slices: int) -> list[tf.Tensor]:
    """The tensors, or random ones like them where they are not known or all rows are equal."""
    is_known = all(not tf.is_symbolic_tensor(t) for t in tensors)
    if is_known and any(bool(tf.reduce_any(tensors[i][1:] != tensors[i][:1])) for i in cut):
        return list(tensors)
    draw = np.random.default_rng(0)
    replaced = {i for i, t in enumerate(tensors) if i in cut or tf.is_symbolic_tensor(t)}
    return [_random(t, 2 * slices, draw) if i in replaced else t for i, t in enumerate(tensors)]


def _random(like: tf.Tensor, samples: int, draw: np.random.Generator) -> tf.Tensor:
    first, *rest = [None] if like.shape.rank == 0 else like.shape.as_list()
    shape = [] if like.shape.rank == 0 else [samples if first is None else first, *(n or _OPEN for n in rest)]
    if like.dtype == tf.string:
        return tf.fill(shape, "")
    if like.dtype.is_floating or like.dtype.is_complex:
        return tf.cast(draw.normal(size=shape), like.dtype)
    return tf.cast(draw.integers(0, 2, shape), like.dtype)


def _results_apart(
    sliced: Any, whole: Directions, cut: Sequence[int], numbers: Tensors, precision: float
) -> str | None:
    """How results in slices differ from those of the whole batch, and rows move where others change."""
    samples, results = len(numbers[cut[0]]), whole.forward(False)(numbers)
    for i, result in enumerate(results):
        if len(result) != samples:
            return f"result {i} has {len(result)} rows for {samples} samples"
    for i, (one, other) in enumerate(zip(results, sliced.forward(True)(numbers))):
        if text := _apart(one, other, precision):
            return f"result {i} in {sliced.slices} slices differs from that of the whole batch by {text}"
    again: list[tf.Tensor] = []
    half = samples // 2
    for kept in (range(half), range(half, samples)):
        others = [i if i in kept else kept[0] for i in range(samples)]
        moved = whole.forward(False)(_of_rows(numbers, cut, others))
        for i, (one, other) in enumerate(zip(results, moved)):
            part = slice(kept.start, kept.stop)
            by, size = _distance(one[part], other[part])
            again = again or (whole.forward(False)(numbers) if by else [])
            if by and by > 4 * _distance(one, again[i])[0]:
                return f"rows of result {i}, of norm {size:.2g}, move by {by:.2g} when other rows change"
    return None


def _gradients_apart(sliced: Any, whole: Directions, few: Tensors, precision: float) -> str | None:
    """How gradients of two slices differ from those of both at once."""
    joint, both, draw = whole.joint, copy.copy(sliced), np.random.default_rng(1)
    both.slices = 2
    if not joint.through or not joint.sources:
        return None
    made = whole.forward(True)(few)
    upstream = [_random(made[i], 0, draw) for i in joint.through]
    plain, in_slices = (_gradients(each, few, upstream) for each in (whole, both))
    most = max((float(np.linalg.norm(_plain(g))) for g in plain if g is not None), default=0.0)
    for source, one, other in zip(joint.sources, plain, in_slices):
        if one is not None and (text := _apart(one, other, precision, least=1e-2 * most)):
            is_argument = source.variable is None
            name = f"tensor {source.position} of its arguments" if is_argument else repr(source.variable.name)
            return f"the gradient of {name} in slices differs from that of the whole batch by {text}"
    return None


def _gradients(directions: Directions, tensors: Tensors, upstream: Tensors) -> list[Any]:
    """The gradients of all sources."""
    through = tuple(directions.joint.through)
    parts, count = directions.parts_of(through), len(directions.joint.made)
    given = [*(tensors[k] for k in directions.read), *directions.forward(True)(tensors)[count:], *upstream]
    flat = iter(directions.backward(through, tuple(range(sum(parts))), False)(given))
    found = [[next(flat) for _ in range(n)] for n in parts]
    return [tf.convert_to_tensor(tf.IndexedSlices(*g)) if len(g) > 1 else g[0] if g else None for g in found]


def _of_rows(tensors: Tensors, cut: Sequence[int], rows: Sequence[int]) -> list[tf.Tensor]:
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
