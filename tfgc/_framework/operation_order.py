"""What waits for what among the operations of a graph, and what they write.

An operation waits for what it reads, for what it has a control edge from, and, once its function is complete, for the
effects that were traced before its own.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import tensorflow as tf

from tfgc._framework import private_api
from tfgc._framework.internals import get_read_write_resource_inputs

Thing = TypeVar("Thing", bound=Hashable)


class EffectOrder:
    """In which order a function keeps the effects of its operations, once it is complete."""

    def __init__(self) -> None:
        self._last: dict[Any, tf.Operation] = {}
        self._reads: dict[Any, list[tf.Operation]] = defaultdict(list)

    def awaited(self, op: tf.Operation) -> list[tf.Operation]:
        """What the next operation that was made waits for."""
        if not private_api.is_stateful(op.type):
            return []
        # TensorFlow keeps that in which they were traced: of what reads a resource and what writes it, and of what has
        # an effect of another kind, such as a check of numbers (`AutomaticControlDependencies`).
        read, written = ({tensor.ref() for tensor in found} for found in get_read_write_resource_inputs(op))
        read -= written
        if not read and not written:
            written = {None}
        found = [self._last[resource] for resource in (*read, *written) if resource in self._last]
        for resource in read:
            self._reads[resource].append(op)
        for resource in written:
            found += self._reads.pop(resource, ())
            self._last[resource] = op
        return found


def dependencies(operations: Sequence[tf.Operation]) -> dict[tf.Operation, set[tf.Operation]]:
    """What each operation waits for among these, which are in the order in which they were made."""
    made = set(operations)
    effects = EffectOrder()
    return {
        op: made.intersection([*(tensor.op for tensor in op.inputs), *op.control_inputs, *effects.awaited(op)])
        for op in operations
    }


def ancestors(
    before: Mapping[tf.Operation, set[tf.Operation]], last: Iterable[tf.Operation], known: Collection[tf.Operation] = ()
) -> set[tf.Operation]:
    """Some operations, and all that these need, without those that are known."""
    return reached(last, before.__getitem__, known)


def needed(operations: Sequence[tf.Operation], tensors: Iterable[tf.Tensor]) -> set[tf.Operation]:
    """What has to run of these operations, in the order in which they were made, for tensors and for effects."""
    before = dependencies(operations)
    effects = [op for op in before if private_api.is_stateful(op.type)]
    return ancestors(before, [*effects, *(tensor.op for tensor in tensors if tensor.op in before)])


def reached(start: Iterable[Thing], further: Callable[[Thing], Iterable[Thing]], known: Collection = ()) -> set[Thing]:
    """Where one comes from `start` by going `further`, without what is known."""
    found: set[Thing] = set()
    waiting = list(start)
    while waiting:
        here = waiting.pop()
        if here not in found and here not in known:
            found.add(here)
            waiting.extend(further(here))
    return found


def ends(
    start: Iterable[tf.Operation],
    after: Mapping[tf.Operation, list[tf.Operation]],
    latest: Mapping[tf.Operation, int],
    limit: int,
) -> list[tf.Operation]:
    """The last operations that `start` leads to, of those that need nothing from `limit` on."""
    found: list[tf.Operation] = []
    seen: set[tf.Operation] = set()
    waiting = [op for op in start if latest[op] < limit]
    while waiting:
        op = waiting.pop()
        if op not in seen:
            seen.add(op)
            readers = [reader for reader in after.get(op, ()) if latest[reader] < limit]
            waiting.extend(readers)
            if not readers:
                found.append(op)
    return found


def written_variables(
    graph: Any, operations: Iterable[tf.Operation], known: Iterable[tf.Variable]
) -> tuple[list[tf.Variable], list[str]]:
    """The variables that some operations of a function's graph may write, functions that they call included.

    Those that are made in the trace, which TensorFlow does not list, are found among `known` ones. Returns the names of
    operations, too, that may write what is no variable, such as a table.
    """
    variables = {id(variable.handle): variable for variable in (*graph.variables, *known)}
    outside = {id(inner): outer for outer, inner in graph.captures}
    found: dict[int, tf.Variable] = {}
    others: list[str] = []
    for operation in operations:
        for handle in get_read_write_resource_inputs(operation)[1]:
            key = id(outside.get(id(handle)))
            if key in variables:
                found[key] = variables[key]
            else:
                others.append(operation.name)
    return list(found.values()), others
