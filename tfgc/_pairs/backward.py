"""The backward pass of a pair, as tapes call it."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfgc._errors import UnsupportedModelError
from tfgc._framework import graph_building, private_api, tensor_attributes, variable_reads
from tfgc._pairs.functions import Directions
from tfgc._pairs.joint import Joint
from tfgc._replay import fence
from tfgc._replay.replayed_gradients import COPIED_BRANCH


class Backward:
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
        # What is attached to an argument must not live as long as a tape does.
        given = [tensors[k] for k in directions.read]
        self._given = [tf.identity(t) if tensor_attributes.attributes(t) else t for t in given]
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
        run = directions.backward(through, recorded)
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
