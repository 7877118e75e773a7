"""The backward pass of a pair, as tapes call it."""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import tensorflow as tf

from tfgc._errors import UnsupportedModelError
from tfgc._framework import (
    graph_building,
    graph_gradients,
    own_replica,
    private_api,
    tensor_attributes,
    xla,
)
from tfgc._pairs.functions import Directions
from tfgc._pairs.joint import Joint
from tfgc._pairs.reading import Part

COPIED_BRANCH = (
    "{} was recomputed inside tf.cond, tf.switch_case or tf.while_loop, and TensorFlow now differentiates a copy of "
    "that branch or body, which holds nothing of what was stored. It makes such a copy for a "
    "tf.autodiff.ForwardAccumulator inside a tf.function. Either call a function there that is not recomputed "
    "(`__wrapped__` of the recomputed function, the model after tfgc.disable), or create the accumulator outside the "
    "tf.function"
)

OF_A_RESULT = (
    "a tape is asked for a gradient by a result of {}, which is a result of which it makes another result: what is "
    "recomputed is one operation to a tape, which knows no way from result to result. Ask for it where nothing is "
    "recomputed (`__wrapped__` of the recomputed function, the model after tfgc.disable)"
)


class Backward:
    """What a tape keeps of a call: the arguments that its backward pass reads, and none of the results.

    `done` is called once, when the first backward pass by a plan has run.
    """

    def __init__(
        self,
        name: str,
        held: Callable[[], Any],
        joint: Joint,
        tensors: Sequence[tf.Tensor],
        kept: Sequence[tf.Tensor],
        done: Callable[[], None] | None = None,
    ) -> None:
        self._name, self._done = name, done
        directions: Directions = held()
        self._held, self._through = held, tuple(joint.through)
        self._sources = [id(tensors[s.position] if s.variable is None else s.variable.handle) for s in joint.sources]
        self._variables = {k for k, source in enumerate(joint.sources) if source.variable is not None}
        # What is attached to an argument must not live as long as a tape does.
        given = [tensors[k] for k in directions.read]
        self._given = [tf.identity(t) if tensor_attributes.attributes(t) else t for t in given]
        self._stateful = list(kept[: len(directions.stateful)])
        self._stored: list[Any] | None = list(kept[len(directions.stateful) :])
        private_api.record_reads((t, v.handle) for t, v in zip(self._stateful, directions.variables) if v is not None)
        self._captures = graph_building.captures_so_far()
        self.asked: set[int] = set()
        self.results: list[Callable[[], Any]] = []

    def __call__(self, *upstream: Any) -> list[Any]:
        asked = sorted(self.asked) if len(upstream) > 1 and self.asked else range(len(upstream))
        self.asked.clear()
        through = tuple(self._through[k] for k in asked)
        recorded = private_api.is_recorded([*self._given, *self._stateful, *upstream])
        directions: Directions | None = self._held()
        if directions is None:
            raise UnsupportedModelError(f"the model of which {self._name} is a part was deleted: keep it alive")
        if not graph_building.can_reach(self._captures):
            raise UnsupportedModelError(COPIED_BRANCH.format(self._name))
        sources = graph_gradients.asked_sources()
        if sources is not None and self._goes_by_results(directions.joint, asked, sources):
            raise UnsupportedModelError(OF_A_RESULT.format(self._name))
        parts = directions.parts_of(through)
        wanted = self._wanted(parts, sources)
        flat = tuple(k for k, source in enumerate(_owners(parts)) if source in wanted)
        with graph_building.redirect_captures(self._captures):
            dy = [_unfolded(graph_building.capture(tf.convert_to_tensor(upstream[k]))) for k in asked]
            if directions.segments is not None and through == self._through and not recorded and self._may_take():
                found = iter(self._by_segments(directions, dy, flat))
                if self._done is not None:
                    self._done()
            else:
                found = iter(self._again(directions, directions.backward(through, flat, recorded), dy))
        self._done = None
        return [_gradient([next(found) for _ in range(n)] if k in wanted else []) for k, n in enumerate(parts)]

    def _wanted(self, parts: Sequence[int], sources: Collection[int] | None) -> set[int]:
        """Positions of the sources that gradients are made of: weights that a tape is not asked for are left out."""
        if sources is None:
            return {*range(len(parts))}
        return {k for k, source in enumerate(self._sources) if k not in self._variables or source in sources}

    def _goes_by_results(self, joint: Joint, asked: Iterable[int], sources: Collection[int]) -> bool:
        """Whether a tape is asked for gradients by a result on the way to another one."""
        by = [self._through[k] for k, result in enumerate(self.results) if id(result()) in sources]
        of = [self._through[k] for k in asked if self._through[k] not in by]
        return bool(by and of) and own_replica.in_own_thread(lambda: joint.leads(by, of))

    def _may_take(self) -> bool:
        """Whether what is stored is there still; where a tape asks for it again, it is kept from now on."""
        directions: Directions = self._held()
        if self._stored is None and directions.segments is not None:
            directions.segments.gives_away = False
        return self._stored is not None

    def _by_segments(self, directions: Directions, dy: list[tf.Tensor], flat: tuple[int, ...]) -> list[tf.Tensor]:
        segments = directions.segments
        assert segments is not None
        assert self._stored is not None
        names = [directions.names[k] for k in directions.read]
        values = dict(zip(names, map(graph_building.capture, self._given)))
        values |= zip(directions.kept, [_captured(t) for t in (*self._stateful, *self._stored)])
        values |= zip(directions.upstream, dy)
        if tf.executing_eagerly() and segments.gives_away:
            self._stored = None
        return segments.backward(flat, values)

    def _again(self, directions: Directions, run: Part, dy: list[tf.Tensor]) -> list[tf.Tensor]:
        # What runs in slices has what is stateful in each.
        of_others = () if directions.segments is not None else self._stored or ()
        given = list(map(graph_building.capture, (*self._given, *self._stateful, *of_others)))
        if private_api.in_xla():  # which drops the edges of a call, and merges what is equal
            given = list(map(xla.waiting(dy), given))
        return run([*given, *dy])


def _owners(parts: Sequence[int]) -> list[int]:
    """For each tensor of gradients the position of the gradient."""
    return [k for k, n in enumerate(parts) for _ in range(n)]


def _unfolded(upstream: tf.Tensor) -> tf.Tensor:
    """An upstream gradient, hidden where it may be a constant: each call would hold all that follows from it."""
    if tf.executing_eagerly() or upstream.shape.rank != 0:
        return upstream
    return tf.raw_ops.PlaceholderWithDefault(input=upstream, shape=[])


def _captured(stored: Any) -> Any:
    return graph_building.capture(stored) if isinstance(stored, tf.Tensor) else stored


def _gradient(parts: list[tf.Tensor]) -> Any:
    if len(parts) < 2:
        return parts[0] if parts else None
    return tf.IndexedSlices(*parts)
