"""A function that runs as a pair: forward stores its arguments, backward makes the rest again."""

import functools
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import keras
import tensorflow as tf

from tfgc._framework import (
    graph_gradients,
    keras_state,
    operation_seeds,
    own_replica,
    private_api,
    python_random,
    tensor_attributes,
)
from tfgc._framework.keras_models import TRACES
from tfgc._framework.keras_state import Surroundings
from tfgc._pairs import obstacles
from tfgc._pairs.backward import Backward
from tfgc._pairs.functions import Directions
from tfgc._pairs.joint import Joint, is_differentiable
from tfgc._pairs.reading import Reading
from tfgc._pairs.segments import Planned
from tfgc._pairs.tensor_packing import Packing

# Of some tensors, None for an unknown rank or size.
Shapes: TypeAlias = tuple[tuple[int | None, ...] | None, ...]
# What plans a trace for tensors of some shapes.
SizedPlan: TypeAlias = Callable[[Reading, Shapes], Planned]


class Pair:
    """The pair of one trace, for arguments of one kind.

    Args:
        fn: The function.
        packing: The structure of its arguments.
        flows: For each of their tensors whether gradients flow to it.
        around: Where in Keras it is called.
        name: What messages call it.
        owner: A layer that lives as long as the function does.
        shapes: Of the tensors, maybe with open sizes. Default: their own.
        plan: What plans the trace, for tensors of these shapes. Default: backward makes all again.
    """

    def __init__(
        self,
        fn: Callable,
        packing: Packing,
        flows: Sequence[bool],
        around: Surroundings,
        name: str,
        owner: keras.Layer | None,
        shapes: Shapes | None = None,
        plan: SizedPlan | None = None,
    ) -> None:
        self.shapes: Shapes = packing.shapes if shapes is None else shapes
        kinds: Any = zip(self.shapes, packing.specs)
        specs = [tf.TensorSpec(shape, spec.dtype) for shape, spec in kinds]

        def traced(*others: Any) -> Joint:
            around.enter()
            return Joint(fn, packing, specs, flows, xla, numbers, *others)

        xla = private_api.in_xla()
        start, numbers = python_random.state(), operation_seeds.Numbers()
        try:
            joint = own_replica.in_own_thread(traced)
        except Exception:
            python_random.rewind(start)
            numbers.put_back()
            raise
        chooses = python_random.state() != start  # so that the next call may do another thing
        outer = list({id(t): t for t in joint.captured if is_differentiable(t) and may_flow(t)}.values())
        watched = _watched(joint)
        if outer or {*map(id, watched)} != {*map(id, joint.watched)}:
            if chooses:
                python_random.rewind(start)
            joint = own_replica.in_own_thread(functools.partial(traced, outer, watched))
        self.joint, self.outer, self._name = joint, outer, name
        self._draws = numbers.are_drawn
        # What the function closes over may be another tensor next time.
        self._holds = around.held(filter(is_differentiable, joint.captured))
        self.may_serve_again = not chooses and self._holds is not None and self._draws_apart
        self._owner: Callable[[], Any] = weakref.ref(owner) if owner is not None else lambda: None
        self._plan, self.planned_for = plan, packing.shapes

    def takes(self, shapes: Shapes) -> bool:
        """Whether it was traced for tensors of these shapes."""
        return all(
            a is None or (b is not None and len(a) == len(b) and all(m in (None, n) for m, n in zip(a, b)))
            for a, b in zip(self.shapes, shapes, strict=True)
        )

    @functools.cached_property
    def branches_differ(self) -> bool:
        """Whether branches of the function read different tensors."""
        joint = self.joint
        return obstacles.branches_differ(joint.function.graph, joint.forward, bool(joint.watched))

    @functools.cached_property
    def directions(self) -> Directions:
        """Its functions, planned when they are first asked for."""
        plan = self._plan
        return Directions(self.joint, None if plan is None else lambda reading: plan(reading, self.planned_for))

    def serves(self) -> bool:
        """Whether what gradients flow to now, besides arguments, is what they flowed to when it was traced."""
        joint = self.joint
        is_closed = not any(is_differentiable(t) and may_flow(t) for t in joint.captured)
        is_held = self._holds is not None and self._holds()
        return self._draws_apart and is_closed and is_held and {*map(id, _watched(joint))} == {*map(id, joint.watched)}

    @property
    def _draws_apart(self) -> bool:
        """Whether two calls by it draw apart. In one graph they do not: operations have seeds by their number."""
        return tf.executing_eagerly() or not self._draws

    def __call__(self, arguments: Any, tensors: Sequence[tf.Tensor]) -> Any:
        """The results for the flat tensors of some arguments."""
        joint = self.joint
        directions = self.directions
        tensors = [*tensors, *self.outer]
        sources = [tensors[s.position] if s.variable is None else s.variable.handle for s in joint.sources]
        through = joint.through if sources else []
        planned = directions.planned if through and tf.executing_eagerly() else None
        ended = planned and planned.begun(tensors)
        with private_api.no_recording():
            found = directions.forward(bool(through))(tensors)
        made = found[: len(joint.made)]
        if through:
            done = None if ended is None else lambda: self._plan_by(ended())
            backward = Backward(self._name, self._held(), joint, tensors, found[len(made) :], done)
            results = graph_gradients.attached([made[i] for i in through], sources, backward, backward.asked)
            backward.results = list(map(weakref.ref, results))
            for i, result in zip(through, results):
                made[i] = result
        for i, k in joint.unchanged.items():
            made[i] = tensors[k]
        keras_state.set_call_context(joint.context_left)
        tensor_attributes.take_masks_off(arguments, joint.unmasked)
        count = len(made) - len(joint.losses)
        for layer, loss in zip(joint.losses, made[count:]):
            layer.add_loss(loss)
        return joint.packing.unpack(made[:count])

    def _plan_by(self, plan: SizedPlan | None) -> None:
        """Let calls that follow run by what another plan makes of the trace, if there is one."""
        if plan is not None:
            self._plan = plan
            vars(self).pop("directions", None)

    def _held(self) -> Callable[[], Any]:
        """What finds the directions. In a graph the owner holds them as long as the graph lives."""
        directions, owner = self.directions, self._owner()
        if owner is None or tf.executing_eagerly():
            return lambda: directions
        # The graph itself must not: TensorFlow keeps each graph in which an optimizer of Keras applies gradients, and
        # the directions lead to the model.
        traces = owner.__dict__.setdefault(TRACES, weakref.WeakKeyDictionary())
        traces.setdefault(tf.compat.v1.get_default_graph(), []).append(directions)
        return weakref.ref(directions)


def may_flow(tensor: tf.Tensor) -> bool:
    """Whether a gradient may flow there. In a graph nobody knows who asks for one later."""
    return not tf.executing_eagerly() or private_api.is_recorded([tensor])


def open_where_they_differ(all_shapes: Iterable[Shapes]) -> Shapes:
    """Shapes of the same ranks with those sizes open in which they differ."""
    return tuple(
        None if None in each else tuple(n if len({n, *others}) == 1 else None for n, *others in zip(*each))
        for each in zip(*all_shapes, strict=True)
    )


def _watched(joint: Joint) -> list[Any]:
    """The variables that a joint reads and tapes watch now, or in a graph also those that train."""
    private_api.note_reads(joint.variables)
    trained = {*map(id, joint.watched)} if not tf.executing_eagerly() else ()
    read = filter(is_differentiable, joint.variables)
    return [v for v in read if id(v) in trained or private_api.is_recorded([v.handle])]
