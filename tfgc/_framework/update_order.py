"""Let updates that are made one by one keep little in memory in a graph.

The executor runs whatever is ready. Left alone, it copies a weight whose update comes before its last reader, and
computes gradients faster than it applies them. So, of the operations of one step:

- an update waits for all that reads the weight;
- a gradient waits until earlier ones are applied that would be larger, together with it, than the largest weight;
- what is added to a gradient, such as that of a regularizer, and depends on nothing, waits for the rest of it.

Values do not change, and nothing is computed that would not be computed anyway.

Invariant: there is an order of all operations in which each comes after what it waits for, and an edge leads from
earlier ones to later ones; or, for what is added, from a part of a sum to what only this sum reads. So there is no
circle. It is not always the order in which operations were made: a replay may wait for one that is made after it.

Known weakness. The gradients that one replay makes do not wait for one another, since they are made before the updates.
"""

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfgc._framework import in_place_updates, operation_order, private_api, versions


@dataclasses.dataclass(frozen=True)
class _Update:
    handle: tf.Tensor
    size: int
    gradient: list[tf.Tensor]
    start: int
    end: int


class UpdateOrder:
    """The updates of one step, while they are made; in eager calls nothing waits."""

    def __init__(self) -> None:
        self._graph: Any = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        self._updates: list[_Update] = []

    @contextlib.contextmanager
    def update(self, variable: Any, gradient: Any) -> Iterator[None]:
        """Note the update of a variable that is made in here."""
        if self._graph is None:
            yield
            return
        start = self._made()
        yield
        tensors = tf.nest.flatten(gradient, expand_composites=True)
        handle, size = private_api.storage(variable).handle, variable.shape.num_elements()
        self._updates.append(_Update(handle, size, tensors, start, self._made()))

    def settle(self) -> None:
        """Let the updates, all of which are made, wait for one another."""
        if not self._updates:
            return
        step = _Operations(self._graph, self._updates)
        for update in self._updates:
            step.delay_additions(update.gradient)
        for update in self._updates:
            step.let_wait(step.writers(update), step.readers(update))
        most = max(update.size for update in self._updates)
        for i, update in enumerate(self._updates):
            together = update.size
            for other in reversed(self._updates[:i]):
                together += other.size
                if together > most:
                    step.let_wait(step.computing(update.gradient, other), step.writers(other))
                if together > 2 * most:  # The last of these waited for those before it.
                    break

    def _made(self) -> int:
        return len(self._graph.get_operations())


class _Operations:
    """The operations of a graph, in an order in which they can run, and what waits for what."""

    def __init__(self, graph: Any, updates: Sequence[_Update]) -> None:
        self._all: list[tf.Operation] = graph.get_operations()
        self._made = {op: i for i, op in enumerate(self._all)}
        before = operation_order.dependencies(self._all)
        self._place = {op: i for i, op in enumerate(operation_order.in_order(before))}
        self._captured = {id(outer): inner for outer, inner in graph.captures}
        self._after: dict[tf.Operation, set[tf.Operation]] = {op: set() for op in self._all}
        for op, others in before.items():
            for other in others:
                self._after[other].add(op)
        made = (op for update in updates for op in self._all[update.start : update.end])
        self._needed = operation_order.ancestors(before, made)

    def let_wait(self, operations: Iterable[tf.Operation], others: Sequence[tf.Operation]) -> None:
        """Let operations wait for others."""
        for op in operations:
            versions.attribute(op, "_add_control_inputs")(others)
            for other in others:
                self._after[other].add(op)

    def writers(self, update: _Update) -> list[tf.Operation]:
        """What writes the variable in its update."""
        handle = self._captured.get(id(update.handle))
        inside = self._all[update.start : update.end]
        return [op for op in inside if op.type != "ReadVariableOp" and any(x is handle for x in op.inputs)]

    def readers(self, update: _Update) -> list[tf.Operation]:
        """What reads the memory of the variable before its update."""
        first = min((self._place[op] for op in self.writers(update)), default=0)
        return [
            op
            for op in in_place_updates.readers_of(self._captured.get(id(update.handle)))
            if self._made[op] < update.start and op in self._needed and self._place[op] < first
        ]

    def computing(self, gradient: Sequence[tf.Tensor], after: _Update) -> list[tf.Operation]:
        """What computes a gradient, of the operations that were made after an update and come after it."""
        last = max((self._place[op] for op in self.writers(after)), default=-1)
        ends = [op for op in in_place_updates.last_steps(gradient) if op.type not in in_place_updates.LAST_STEPS]
        return [op for op in ends if self._made[op] >= after.end and self._place[op] > last]

    def delay_additions(self, gradient: Sequence[tf.Tensor]) -> None:
        """Let what is added to a gradient, and made for that alone, wait for the last part."""
        for total in in_place_updates.last_steps(gradient):
            if total.type not in ("AddN", "AddV2"):
                continue
            *others, last = sorted((x.op for x in total.inputs), key=lambda op: self._place[op])
            alone = {total}
            waiting = [op for op in others if op is not last]
            while waiting:
                op = max(waiting, key=lambda op: self._place[op])  # What reads it is known by then.
                waiting = [other for other in waiting if other is not op]
                if op.inputs and op.type != "ReadVariableOp" and self._after[op] <= alone:
                    alone.add(op)
                    self._needed.discard(op)  # No other update may wait for what waits for this gradient.
                    waiting += [x.op for x in op.inputs]
                    self.let_wait([op], [last])
