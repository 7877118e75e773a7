"""Gradients of a replay that XLA compiles, made otherwise than XLA would.

Its scheduler for GPUs puts gradients of weights off, since nothing but the update reads them. Until then what they are
made of stays: the replayed inputs of convolutions and products, and the gradients that flow back. So a barrier lets
none of a replay's gradients be read before all are there. Those of layers that are kept are up to `replay_order`.

Gradients of max pooling are scattered into what reads nothing, and so waits for nothing: it is there from the start of
the step. Comparisons, selections and pads do it as TensorFlow's own kernels: each window's gradient goes to the first
of its largest elements, and where windows overlap, gradients are added in the order of the windows. (Of equal elements
in padded windows XLA takes another one.)
"""

import contextlib
import itertools
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, TypeVar, cast

import numpy as np
import tensorflow as tf

from tfgc._framework import operation_hooks, private_api, versions
from tfgc._framework.internals import gen_xla_ops, pfor

Made = TypeVar("Made")
_BARRIER = "XlaOptimizationBarrier"
# Elements of a window: for each, several operations are made.
_LARGEST = 25


def _of_all_iterations(pfor_input: Any) -> list[Any]:
    """The barrier of what `tf.vectorized_map` computes at once."""
    stacked = [pfor_input.stacked_input(i) for i in range(pfor_input.num_inputs)]
    made: Any = gen_xla_ops.xla_optimization_barrier(stacked)
    return [pfor.wrap(tensor, True) for tensor in made]


with contextlib.suppress(KeyError):  # A later TensorFlow may have one.
    tf.RegisterGradient(_BARRIER)(lambda op, *upstream: [*upstream])
with contextlib.suppress(KeyError):
    pfor.RegisterPFor(_BARRIER)(_of_all_iterations)


def all_at_once(gradients: Sequence[Any], arguments: int, unasked: Collection[int]) -> list[Any]:
    """Gradients none of which XLA goes on from before all are there, kernels' among them; else they stay as they are.

    So they do where a tape records them: it would take all of what a barrier makes for used. So many of the gradients,
    the first ones, are those of `arguments`; those in positions that are `unasked` may be for nobody, and are not to be
    computed then. Kernels' gradients that come from a replay inside are there early, and need not stay until this one
    is done.
    """
    if not private_api.in_xla():
        return [*gradients]
    asked = {
        i: gradient
        for i, gradient in enumerate(gradients)
        if i not in unasked and gradient is not None and not (i >= arguments and _is_behind_a_barrier(gradient))
    }
    # The shape of a sparse gradient must be a constant that XLA can see.
    tensors = [t for t in tf.nest.flatten([*asked.values()], expand_composites=True) if not t.dtype.is_integer]
    # Of kernels, whose gradients products make, and no sums.
    of_kernels = (i >= arguments and (g.shape.rank is None or g.shape.rank > 1) for i, g in asked.items())
    if not any(of_kernels) or private_api.is_recorded(tensors):
        return [*gradients]
    made: Any = gen_xla_ops.xla_optimization_barrier(tensors)
    held = {t.ref(): new for t, new in zip(tensors, made)}
    flat = tf.nest.flatten([*gradients], expand_composites=True)
    flat = [t if t is None else held.get(t.ref(), t) for t in flat]
    return tf.nest.pack_sequence_as([*gradients], flat, expand_composites=True)


def _is_behind_a_barrier(gradient: Any) -> bool:
    return isinstance(gradient, tf.Tensor) and gradient.op.type == _BARRIER


def without_scatters(make: Callable[[], Made]) -> Made:
    """Call a function that makes a structure of gradients; under XLA let those of max pooling be computed otherwise."""
    if not private_api.in_xla():
        return make()
    with operation_hooks.noted() as operations:
        made = make()
    replaced = {}
    for op in operations:
        if op.type == "MaxPoolGrad" and _is_plain(op):
            old, new = op.outputs[0], _gradient(op)
            for reader in list(old.consumers()):
                for i in [i for i, tensor in enumerate(reader.inputs) if tensor is old]:
                    versions.attribute(reader, "_update_input")(i, new)
            replaced[old.ref()] = new
    return tf.nest.map_structure(lambda x: replaced.get(x.ref(), x) if isinstance(x, tf.Tensor) else x, made)


def _is_plain(op: tf.Operation) -> bool:
    """Whether it pools over height and width of known size, by small windows, the channels last."""
    samples, *sizes, channels = op.get_attr("ksize")
    images = op.inputs[0].shape
    known = images.rank is not None and all(size is not None for size in images[1:])
    return (
        op.get_attr("data_format") == b"NHWC"
        and op.get_attr("padding") in (b"SAME", b"VALID")
        and samples == channels == 1
        and math.prod(sizes) <= _LARGEST
        and known
    )


class _Windows:
    """Windows of a `MaxPoolGrad` over padded images: an element of each is a slice of the images."""

    def __init__(self, op: tf.Operation) -> None:
        images, pooled, _ = op.inputs
        sizes, self._strides = (op.get_attr(name)[1:3] for name in ("ksize", "strides"))
        self._places = list(itertools.product(*map(range, sizes)))
        self._images, self._counts = (cast(list[int], x.shape.as_list()[1:3]) for x in (images, pooled))
        # Of VALID windows none is beyond the images.
        spans = [(count - 1) * stride + size for count, stride, size in zip(self._counts, self._strides, sizes)]
        beyond = [max(span - given, 0) for span, given in zip(spans, self._images)]
        self._pads = [(extra // 2, extra - extra // 2) for extra in beyond]
        self._padded = tf.pad(images, [(0, 0), *self._pads, (0, 0)]) if any(beyond) else images

    def elements(self) -> Iterator[tuple[tf.Tensor, np.ndarray | None]]:
        """Each element of all windows, and in which windows it is one of the images: None for all."""
        for place in self._places:
            inside = np.logical_and.outer(*(self._inside(axis, start) for axis, start in enumerate(place)))
            element = tf.strided_slice(self._padded, **self._slice(place), strides=[1, *self._strides, 1])
            yield element, None if inside.all() else inside[None, :, :, None]

    def _inside(self, axis: int, start: int) -> np.ndarray:
        at = start + self._strides[axis] * np.arange(self._counts[axis]) - self._pads[axis][0]
        return (at >= 0) & (at < self._images[axis])

    def _slice(self, place: tuple[int, ...]) -> dict[str, Any]:
        ends = [start + (count - 1) * stride + 1 for start, count, stride in zip(place, self._counts, self._strides)]
        # Of all samples and all channels.
        return {"begin": [0, *place, 0], "end": [0, *ends, 0], "begin_mask": 0b1001, "end_mask": 0b1001}

    def scattered(self, values: tf.Tensor, chosen: tf.Tensor) -> tf.Tensor:
        """Images in which each window has added its value to the element that is chosen in it."""
        shape, strides, zeros = tf.shape(self._padded), [1, *self._strides, 1], tf.zeros_like(values)
        parts = [
            tf.raw_ops.StridedSliceGrad(
                shape=shape, dy=tf.where(tf.equal(chosen, i), values, zeros), strides=strides, **self._slice(place)
            )
            for i, place in enumerate(self._places)
        ]
        # Of the windows around an element the first has it at its end.
        total = tf.add_n(parts[::-1])
        (top, _), (left, _) = self._pads
        height, width = self._images
        return total[:, top : top + height, left : left + width, :]


def _gradient(op: tf.Operation) -> tf.Tensor:
    """What a `MaxPoolGrad` computes."""
    windows = _Windows(op)
    (best, seen), *others = windows.elements()
    chosen = tf.zeros_like(best, tf.int16)
    for i, (element, inside) in enumerate(others, 1):
        # As XLA compares, which says what happens to NaN.
        stays = best >= element
        if seen is not None:
            stays &= seen
        if inside is not None:
            stays |= ~inside
        seen = None if seen is None or inside is None else seen | inside
        chosen, best = tf.where(stays, chosen, tf.constant(i, tf.int16)), tf.where(stays, best, element)
    return windows.scattered(op.inputs[2], chosen)
