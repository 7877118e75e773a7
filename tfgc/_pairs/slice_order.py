"""Slices of a batch, one after the other.

Rows of results, and of gradients of what is cut, are written into one buffer; gradients of what is not cut are added
up. So one slice is in memory at a time, beside them. A slice waits for the one before it: in a graph by an edge between
calls, which stay calls, under XLA by a number that it is added to.

`concat`, `TensorArray` and `tensor_scatter_nd_update` copy all rows once more. TensorFlow's `InplaceUpdate` does not.
It has no gradient in TensorFlow, and gets one here.
"""

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfgc._framework import private_api, xla

# How what slices make becomes one: rows of samples one behind the other, in a buffer or not, all that they make one
# behind the other, a sum, or the same in all slices.
ROWS, LISTED, ALL, SUM, SAME = "rows", "listed", "all", "sum", "same"


def places(tensors: Sequence[tf.Tensor], slices: int) -> list["Place"]:
    """Where so many slices are of what is cut."""
    known = [t.shape[0] for t in tensors if t.shape[0] is not None]
    samples: Any = known[0] if known else tf.shape(tensors[0])[0]
    if not tf.executing_eagerly():
        for t in tensors[1:]:
            tf.debugging.assert_equal(tf.shape(t)[0], samples, "arguments have different numbers of samples")
    count = min(slices, samples) if isinstance(samples, int) else slices
    edges = [samples * i // count for i in range(count + 1)]
    return [Place(*each, samples) for each in itertools.pairwise(edges)]


class Place:
    """Where a slice starts and stops, as numbers, or tensors where the number of samples is open.

    There may be fewer samples than slices then. Kernels are not sure to take what is empty, so a slice without samples
    runs on that of another one, and nothing of it counts.
    """

    def __init__(self, start: Any, stop: Any, samples: Any) -> None:
        self.start, self.size, self.behind = start, stop - start, samples - stop
        self._is_open = not isinstance(samples, int)
        self._runs_on = tf.minimum(tf.maximum(self.size, 1), samples - start) if self._is_open else self.size
        self.wait: Callable[[tf.Tensor], tf.Tensor] = lambda t: t

    def rows(self, tensor: tf.Tensor) -> tf.Tensor:
        """Those of a tensor, to run on."""
        return self.wait(_rows(tensor, self.start, self._runs_on))

    def upstream(self, tensor: tf.Tensor) -> tf.Tensor:
        """Those of an upstream gradient."""
        rows = self.rows(tensor)
        return tf.where(self.size > 0, rows, tf.zeros_like(rows)) if self._is_open else rows

    def counted(self, made: tf.Tensor) -> tf.Tensor:
        """What counts of the rows that it makes."""
        return _rows(made, 0, self.size) if self._is_open else made


def _rows(tensor: tf.Tensor, start: Any, size: Any) -> tf.Tensor:
    rest = [-1 if length is None else length for length in tensor.shape[1:]]  # XLA wants to know the sizes.
    return tf.slice(tensor, [start, *(0 for _ in rest)], [size, *rest])


def in_order(
    places: Sequence[Place], kinds: Sequence[str], step: Callable[[Place], list[tf.Tensor]], in_place: bool
) -> list[tf.Tensor]:
    """What the slices make that are at these places, as what it is for the whole batch."""
    made: list[Any] = []
    for place in places:
        with _behind(tf.nest.flatten(made)) as place.wait:
            found = step(place)
        if not made:
            is_written = [kind == ROWS and in_place and t.dtype.is_floating for kind, t in zip(kinds, found)]
            kinds = [LISTED if kind == ROWS and not written else kind for kind, written in zip(kinds, is_written)]
        made = [_joined(*each, place) for each in zip(kinds, made or found, found)]
        del found
    return [tf.concat(m, 0) if kind in (LISTED, ALL) else m for kind, m in zip(kinds, made)]


def _joined(kind: str, made: Any, tensor: tf.Tensor, place: Place) -> Any:
    """What slices have made, with what another one makes; of the first one both are the same."""
    is_first = made is tensor
    if kind == ROWS:
        rows = place.counted(tensor)
        if is_first:
            return _with_room(rows, place.behind)
        return tf.raw_ops.InplaceUpdate(x=made, i=place.start + tf.range(tf.shape(rows)[0]), v=rows)
    if kind in (LISTED, ALL):
        return [*([] if is_first else made), place.counted(tensor) if kind == LISTED else tensor]
    return made + tensor if kind == SUM and not is_first else made


@contextlib.contextmanager
def _behind(tensors: Sequence[tf.Tensor]) -> Iterator[Callable[[tf.Tensor], tf.Tensor]]:
    """Yield a function that makes what is read in here wait for some tensors."""
    numbers = [t for t in tensors if t.dtype.is_floating]
    if numbers and private_api.in_xla():
        yield xla.waiting(numbers)
    else:
        with contextlib.nullcontext() if tf.executing_eagerly() else tf.control_dependencies(tensors):
            yield lambda t: t


def _with_room(rows: tf.Tensor, more: Any) -> tf.Tensor:
    """Rows, with room for so many more behind; where that is none, the tensor itself."""
    # Of what is made of a size or of constants alone, Grappler makes one constant for all that are equal, into which
    # several were then written: in a loop `more` depends on the iteration.
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    with contextlib.nullcontext() if graph is None else graph.gradient_override_map({"Pad": _ROOM}):
        return tf.pad(rows, [[0, more], *([0, 0] for _ in rows.shape[1:])])


def _without_room(op: tf.Operation, upstream: tf.Tensor) -> tuple[tf.Tensor, None]:
    """The gradient of `_with_room`. In that of `tf.pad`, Grappler folds the shape of what a loop makes larger."""
    rows, *rest = tf.unstack(tf.shape(upstream))
    return tf.slice(upstream, [0] * len(upstream.shape), [rows - op.inputs[1][0, 1], *rest]), None


_ROOM = "TfgcWithRoom"
tf.RegisterGradient(_ROOM)(_without_room)
with contextlib.suppress(KeyError):  # A later TensorFlow may have one.
    # The rows of the buffer that were there before get a gradient, too, which goes nowhere: nothing made them.
    tf.RegisterGradient("InplaceUpdate")(lambda op, upstream: (upstream, None, tf.gather(upstream, op.inputs[1])))
