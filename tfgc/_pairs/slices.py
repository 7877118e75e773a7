"""A pair that runs in slices of the batch, one after the other, forward and backward."""

from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any

import tensorflow as tf

from tfgc._error_texts import one_line
from tfgc._errors import UnsupportedModelError
from tfgc._framework import private_api
from tfgc._pairs import obstacles
from tfgc._pairs.functions import Directions, Part
from tfgc._pairs.joint import Joint
from tfgc._pairs.pair import Pair, Shapes
from tfgc._pairs.slice_order import ALL, ROWS, SAME, SUM, Place, in_order, places
from tfgc._pairs.slices_check import ADVICE, Checks
from tfgc._pairs.tensor_packing import Packing

WHOLE = "Tensors whose first size is not that of the first one go whole to each slice"


class Slices:
    """Makes the pairs of a function that runs in at most so many slices of the batch."""

    def __init__(self, slices: int, name: str) -> None:
        self._slices, self._name = slices, name
        self._checks = Checks(name)

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
        if obstacle := _effect(pair.joint) or _form(pair, cut):
            raise UnsupportedModelError(f"{self._name} cannot run in slices of the batch: {obstacle}. {ADVICE}")
        pair.directions = SlicedDirections(pair.joint, cut, self._slices)
        self._checks(kind, pair, cut, tensors, made)
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


def _effect(joint: Joint) -> str | None:
    """What a function does besides giving results."""
    if joint.losses:
        return f"layer {joint.losses[0].name!r} adds a loss"
    outer = next(filter(tf.is_symbolic_tensor, joint.captured), None)
    if outer is not None:
        return f"it closes over {outer.name!r} of a graph, which is to be an argument"
    graph: Any = joint.function.graph
    names = {id(v.handle): v.name for v in joint.variables}
    variables = {inner.op.name: names[id(outer)] for outer, inner in graph.captures if id(outer) in names}
    return obstacles.effect(graph, variables)


def _form(pair: Pair, cut: Sequence[int]) -> str | None:
    """What a function returns that no rows can be put together to."""
    size = pair.shapes[cut[0]][0]  # pyright: ignore[reportOptionalSubscript]
    for i, made in enumerate(pair.joint.made):
        first = () if made.shape.rank is None else tuple(made.shape[:1])
        if not first or (size is not None and first[0] not in (size, None)):
            return f"result {i} has the shape {made.shape}, without the batch in front"
    return None


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

            def step(place: Place) -> list[tf.Tensor]:
                found = part(self._rows(tensors, range(len(tensors)), place))
                left = found[count:]
                stateful.extend([left[k] for k in self._of_each] if stateful else left)
                return found[:count]

            return in_order(self._places(tensors), [ROWS] * count, step, not private_api.in_xla()) + stateful

        return run

    def backward(self, through: tuple[int, ...], wanted: tuple[int, ...], recorded: bool) -> Part:
        part, joint = super().backward(through, wanted, recorded), self.joint
        kinds: list[str] = []
        for source, parts in zip(joint.sources, self.parts_of(through)):
            is_cut = source.position in self._cut
            if parts > 1 and is_cut:
                raise UnsupportedModelError("what runs in slices has no sparse gradient of what is cut")
            kinds += [ALL, ALL, SAME] if parts > 1 else [ROWS if is_cut else SUM] * parts
        kinds = [kinds[k] for k in wanted]

        def run(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
            reads, last = len(self.read), len(tensors) - len(through)
            given, rest, upstream = tensors[:reads], tensors[reads : reads + len(self.stateful)], tensors[last:]
            of_others = iter(tensors[reads + len(self.stateful) : last])
            where = self._places([None] * joint.count, upstream)

            def step(place: Place) -> list[tf.Tensor]:
                stateful = list(rest)
                for k in self._of_each if place.start is not where[0].start else ():
                    stateful[k] = next(of_others)
                return part([*self._rows(given, self.read, place), *stateful, *map(place.upstream, upstream)])

            return in_order(where, kinds, step, not (recorded or private_api.in_xla()))

        return run

    def _rows(self, tensors: Sequence[tf.Tensor], positions: Sequence[int], place: Place) -> list[tf.Tensor]:
        return [place.rows(t) if k in self._cut else t for k, t in zip(positions, tensors)]

    def _places(self, tensors: Sequence[Any], upstream: Sequence[tf.Tensor] = ()) -> list[Place]:
        cut = [*upstream, *(tensors[k] for k in sorted(self._cut) if tensors[k] is not None)]
        return places(cut, self.slices)
