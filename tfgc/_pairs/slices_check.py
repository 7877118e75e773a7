"""Whether a function may run in slices of the batch, looked at once for each kind of calls: first at its trace."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import tensorflow as tf

from tfgc._core.recently_used import RecentlyUsed
from tfgc._error_texts import one_line
from tfgc._errors import UnsupportedModelError
from tfgc._framework import isolated_traces
from tfgc._pairs import obstacles, slices_compared
from tfgc._pairs.joint import Joint
from tfgc._pairs.pair import Pair
from tfgc._pairs.tensor_packing import Packing

_MOST_KNOWN = 64
_ADVICE = "Leave what mixes or counts samples out of it, or call recompute without slices"


class Checks:
    """The checks of one function."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._known: RecentlyUsed[Any, bool] = RecentlyUsed(_MOST_KNOWN)

    def __call__(
        self,
        kind: Hashable,
        pair: Pair,
        sliced: Any,
        cut: Sequence[int],
        tensors: Sequence[tf.Tensor],
        packing: Packing,
        made: Callable[..., Pair],
    ) -> None:
        """Raise if a pair, whose directions are `sliced`, differs from what is `made` of the whole batch."""
        obstacle = _effect(pair.joint) or _form(pair, cut)
        if obstacle:
            raise UnsupportedModelError(f"{self._name} cannot run in slices of the batch: {obstacle}. {_ADVICE}")
        sources = tuple((source.position, id(source.variable)) for source in pair.joint.sources)
        if (kind, sources) in self._known:
            return
        tensors = [*tensors, *pair.outer]
        numbers, few = isolated_traces.in_own_thread(lambda: slices_compared.numbers_for(tensors, cut, sliced.slices))
        if len(numbers[cut[0]]) < 2:
            return
        wholes = []
        for some in (numbers, few):
            shapes = tuple(tuple(t.shape) for t in some[: len(packing.shapes)])
            wholes.append(made(shapes=shapes))
        try:
            found = isolated_traces.in_own_thread(lambda: slices_compared.difference(sliced, wholes, cut, numbers, few))
        except tf.errors.OpError as error:
            if kind in self._known:
                return
            raise UnsupportedModelError(
                f"{self._name} cannot be compared in slices and on the whole batch ({one_line(error)}). In a graph "
                "that is done on random numbers: call it once in eager code, on a batch"
            ) from error
        if found:
            raise UnsupportedModelError(f"{self._name} is not independent across the batch: {found}. {_ADVICE}")
        self._known[kind] = self._known[kind, sources] = True


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
