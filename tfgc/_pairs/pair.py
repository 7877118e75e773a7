"""A function that runs as a pair: forward stores its arguments, backward makes the rest again."""

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfgc._errors import UnsupportedModelError
from tfgc._framework import (
    graph_building,
    graph_gradients,
    isolated_traces,
    private_api,
    tensor_attributes,
    variable_reads,
)
from tfgc._framework.keras_models import TRACES
from tfgc._framework.surroundings import Surroundings
from tfgc._pairs.functions import Directions
from tfgc._pairs.joint import Joint
from tfgc._pure import python_random
from tfgc._pure.tensor_packing import Packing
from tfgc._replay import fence

COPIED_BRANCH = (
    "{} was recomputed inside tf.cond, tf.switch_case or tf.while_loop, and TensorFlow now differentiates a copy of "
    "that branch or body, which holds nothing of what was stored. It makes such a copy for a "
    "tf.autodiff.ForwardAccumulator inside a tf.function. Either call a function there that is not recomputed "
    "(`__wrapped__` of the recomputed function, the model after tfgc.disable), or create the accumulator outside the "
    "tf.function"
)


class Pair:
    """The pair of one trace, for arguments of one kind.

    Args:
        fn: The function.
        packing: The structure of its arguments.
        flows: For each of their tensors whether gradients flow to it.
        around: Where in Keras it is called.
        name: What messages call it.
        owner: A layer that lives as long as the function does.
    """

    def __init__(
        self,
        fn: Callable,
        packing: Packing,
        flows: Sequence[bool],
        around: Surroundings,
        name: str,
        owner: keras.Layer | None,
    ) -> None:
        def traced(*others: Any) -> Joint:
            with around.reentered():
                return Joint(fn, packing, flows, *others)

        start = python_random.state()
        joint = isolated_traces.in_own_thread(traced)
        self.chooses = python_random.state() != start  # so that the next call may do another thing
        outer = list({id(t): t for t in joint.captured if _flows(t) and may_flow(t)}.values())
        watched = _watched(joint)
        if outer or {*map(id, watched)} != {*map(id, joint.watched)}:
            if self.chooses:
                python_random.rewind(start)
            joint = isolated_traces.in_own_thread(functools.partial(traced, outer, watched))
        self.joint, self._outer, self._name = joint, outer, name
        self._owner: Callable[[], Any] = weakref.ref(owner) if owner is not None else lambda: None
        self._directions: Directions | None = None

    def serves(self) -> bool:
        """Whether what gradients flow to now, besides arguments, is what they flowed to when it was traced."""
        joint = self.joint
        is_closed = not self._outer and not any(_flows(t) and may_flow(t) for t in joint.captured)
        return is_closed and {*map(id, _watched(joint))} == {*map(id, joint.watched)}

    def __call__(self, arguments: Any, tensors: Sequence[tf.Tensor]) -> Any:
        """The results for the flat tensors of some arguments."""
        joint = self.joint
        if self._directions is None:
            self._directions = isolated_traces.in_own_thread(lambda: Directions(joint))
        directions = self._directions
        tensors = [*tensors, *self._outer]
        sources = [tensors[s.position] if s.variable is None else s.variable.handle for s in joint.sources]
        through = joint.through if sources else []
        with private_api.no_recording():
            found = directions.forward(bool(through))(tensors)
        made = found[: len(joint.made)]
        if through:
            backward = _Backward(self._name, self._held(), joint, tensors, found[len(made) :])
            results = graph_gradients.attached([made[i] for i in through], sources, backward, backward.asked)
            for i, result in zip(through, results):
                made[i] = result
        tensor_attributes.take_masks_off(arguments, joint.unmasked)
        count = len(made) - len(joint.losses)
        for layer, loss in zip(joint.losses, made[count:]):
            layer.add_loss(loss)
        return joint.packing.unpack(made[:count])

    def _held(self) -> Callable[[], Any]:
        """What finds the directions. In a graph the owner holds them as long as the graph lives."""
        directions, owner = self._directions, self._owner()
        if owner is None or tf.executing_eagerly():
            return lambda: directions
        # The graph itself must not: TensorFlow keeps each graph in which an optimizer of Keras applies gradients, and
        # the directions lead to the model.
        traces = owner.__dict__.setdefault(TRACES, weakref.WeakKeyDictionary())
        traces.setdefault(tf.compat.v1.get_default_graph(), []).append(directions)
        return weakref.ref(directions)


class _Backward:
    """What a tape keeps of a call: the arguments that its backward pass reads, and none of the results."""

    def __init__(
        self,
        name: str,
        held: Callable[[], Any],
        joint: Joint,
        tensors: Sequence[tf.Tensor],
        stateful: Sequence[tf.Tensor],
    ) -> None:
        self._name = name
        directions: Directions = held()
        self._held, self._through = held, tuple(joint.through)
        self._given = [tensors[k] for k in directions.read]
        self._stateful = list(stateful)
        self._read = [k for k, variable in enumerate(directions.variables) if variable is not None]
        handles = [v.handle for v in directions.variables if v is not None]
        self._reads = variable_reads.Reads(handles) if handles and tf.executing_eagerly() else None
        if self._reads is None:
            variable_reads.record_each([stateful[k] for k in self._read], handles)
        self._captures = graph_building.captures_so_far()
        self.asked: set[int] = set()

    def __call__(self, *upstream: Any) -> list[Any]:
        asked = sorted(self.asked) if len(upstream) > 1 and self.asked else range(len(upstream))
        self.asked.clear()
        through = tuple(self._through[k] for k in asked)
        stateful = list(self._stateful)
        if self._reads is not None:
            for k, value in zip(self._read, self._reads.values([stateful[k] for k in self._read])):
                stateful[k] = value
        recorded = private_api.is_recorded([*self._given, *stateful, *upstream])
        directions: Directions | None = self._held()
        if directions is None:
            raise UnsupportedModelError(f"the model of which {self._name} is a part was deleted: keep it alive")
        run = isolated_traces.in_own_thread(lambda: directions.backward(through, recorded))
        if not graph_building.can_reach(self._captures):
            raise UnsupportedModelError(COPIED_BRANCH.format(self._name))
        with graph_building.redirect_captures(self._captures):
            dy = [graph_building.capture(tf.convert_to_tensor(upstream[k])) for k in asked]
            given = list(map(graph_building.capture, (*self._given, *stateful)))
            if private_api.in_xla():  # which drops the edges of a call, and merges what is equal
                with fence.fence(dy) as wait:
                    given = [wait(t) if _waits(t.dtype) else t for t in given]
            flat = iter(run([*given, *dy]))
        return [_gradient([next(flat) for _ in range(n)]) for n in directions.parts_of(through)]


def _gradient(parts: list[tf.Tensor]) -> Any:
    if len(parts) < 2:
        return parts[0] if parts else None
    return tf.IndexedSlices(*parts)


def _waits(dtype: tf.DType) -> bool:
    return dtype.is_floating or dtype.is_integer or dtype.is_bool


def _flows(tensor: Any) -> bool:
    return tensor.dtype.is_floating or tensor.dtype.is_complex


def may_flow(tensor: tf.Tensor) -> bool:
    """Whether a gradient may flow there. In a graph nobody knows who asks for one later."""
    return not tf.executing_eagerly() or private_api.is_recorded([tensor])


def _watched(joint: Joint) -> list[Any]:
    """The variables that a joint reads and tapes watch now, or in a graph also those that train."""
    variable_reads.note(joint.variables)
    trained = {*map(id, joint.watched)} if not tf.executing_eagerly() else ()
    return [v for v in joint.variables if _flows(v) and (id(v) in trained or private_api.is_recorded([v.handle]))]
