"""A pair that runs in slices of the batch, one after the other, forward and backward."""

from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any

import tensorflow as tf

from tfgc._error_texts import one_line
from tfgc._errors import UnsupportedModelError
from tfgc._framework import private_api
from tfgc._pairs import slice_order, slices_check
from tfgc._pairs.functions import Directions, Part
from tfgc._pairs.joint import Joint
from tfgc._pairs.pair import Pair, Shapes
from tfgc._pairs.tensor_packing import Packing

WHOLE = "Tensors whose first size is not that of the first one go whole to each slice"


class Slices:
    """Makes the pairs of a function that runs in at most so many slices of the batch."""

    def __init__(self, slices: int, name: str) -> None:
        self._slices, self._name = slices, name
        self._checks = slices_check.Checks(name)

    def shapes(self, packing: Packing) -> Shapes:
        """Those of the tensors of a slice."""
        cut = self._cut(packing)
        samples = packing.shapes[cut[0]][0]  # pyright: ignore[reportOptionalSubscript]
        slices = min(self._slices, samples or self._slices)
        size = samples // slices if samples and samples % slices == 0 else None
        return tuple((size, *(shape or ())[1:]) if i in cut else shape for i, shape in enumerate(packing.shapes))

    def pair(
        self, kind: Hashable, tensors: Sequence[tf.Tensor], packing: Packing, made: Callable[..., Pair], shapes: Shapes
    ) -> Pair:
        """A pair as `made` for a kind of calls, of which these are the tensors of the first one, checked on them."""
        cut = self._cut(packing)
        try:
            pair = made(shapes=shapes)
        except (ValueError, TypeError) as error:  # of code that computes with a size
            if None not in [shapes[i][0] for i in cut]:  # pyright: ignore[reportOptionalSubscript]
                raise
            raise UnsupportedModelError(
                f"{self._name} cannot run in {self._slices} slices: they are not all of one size, and its code asks "
                f"for the size ({one_line(error)}). Use tf.shape, or a number of slices that divides the batch"
            ) from error
        pair.directions = directions = SlicedDirections(pair.joint, cut, self._slices)
        self._checks(kind, pair, directions, cut, tensors, packing, made)
        return pair

    def _cut(self, packing: Packing) -> list[int]:
        """The positions of the tensors that are cut."""
        if packing.layouts:
            raise UnsupportedModelError(
                f"{self._name} cannot run in slices on sparse or ragged tensors: give dense ones, with a mask"
            )
        first = [None if shape is None else shape[:1] for shape in packing.shapes]
        if None in first:
            raise UnsupportedModelError(f"{self._name} cannot run in slices of a tensor of unknown rank: set its shape")
        samples = next(filter(None, first), None)
        if samples is None:
            raise UnsupportedModelError(f"{self._name} cannot run in slices: no argument has a batch in front")
        return [i for i, size in enumerate(first) if size in (samples, (None,))]


class SlicedDirections(Directions):
    """Forward and backward of a joint trace of a slice, as functions of the whole batch."""

    forward_stays = True

    def __init__(self, joint: Joint, cut: Collection[int], slices: int) -> None:
        super().__init__(joint)
        self._cut, self.slices = frozenset(cut), slices
        # What is stateful and no read of a variable, such as rows of one, is made for each slice.
        self._of_each = [k for k, variable in enumerate(self.variables) if variable is None]

    def forward(self, recorded: bool) -> Part:
        part, count = super().forward(recorded), len(self.joint.made)

        def run(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
            stateful: list[tf.Tensor] = []

            def step(place: slice_order.Place) -> list[tf.Tensor]:
                found = part(self._rows(tensors, range(len(tensors)), place))
                left = found[count:]
                stateful.extend([left[k] for k in self._of_each] if stateful else left)
                return found[:count]

            return (
                slice_order.in_order(self._places(tensors), [slice_order.ROWS] * count, step, not private_api.in_xla())
                + stateful
            )

        return run

    def backward(self, through: tuple[int, ...], wanted: tuple[int, ...], recorded: bool) -> Part:
        part, joint = super().backward(through, wanted, recorded), self.joint
        kinds: list[str] = []
        for source, parts in zip(joint.sources, self.parts_of(through)):
            is_cut = source.position in self._cut
            if parts > 1 and is_cut:
                raise UnsupportedModelError("what runs in slices has no sparse gradient of what is cut")
            kinds += (
                [slice_order.ALL, slice_order.ALL, slice_order.SAME]
                if parts > 1
                else [slice_order.ROWS if is_cut else slice_order.SUM] * parts
            )

        kinds = [kinds[k] for k in wanted]

        def run(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
            reads, last = len(self.read), len(tensors) - len(through)
            given, rest, upstream = tensors[:reads], tensors[reads : reads + len(self.stateful)], tensors[last:]
            of_others = iter(tensors[reads + len(self.stateful) : last])
            places = self._places([None] * joint.count, upstream)

            def step(place: slice_order.Place) -> list[tf.Tensor]:
                stateful = list(rest)
                for k in self._of_each if place.start is not places[0].start else ():
                    stateful[k] = next(of_others)
                return part([*self._rows(given, self.read, place), *stateful, *map(place.upstream, upstream)])

            return slice_order.in_order(places, kinds, step, not (recorded or private_api.in_xla()))

        return run

    def _rows(
        self, tensors: Sequence[tf.Tensor], positions: Sequence[int], place: slice_order.Place
    ) -> list[tf.Tensor]:
        return [place.rows(t) if k in self._cut else t for k, t in zip(positions, tensors)]

    def _places(self, tensors: Sequence[Any], upstream: Sequence[tf.Tensor] = ()) -> list[slice_order.Place]:
        cut = [*upstream, *(tensors[k] for k in sorted(self._cut) if tensors[k] is not None)]
        return slice_order.places(cut, self.slices)
