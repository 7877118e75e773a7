"""What the operations of a trace may write, and in which order TensorFlow will keep that."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tfgc._framework import private_api
from tfgc._framework.internals import get_read_write_resource_inputs


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


class EffectOrder:
    """In which order a function keeps the effects of its operations, once it is complete.

    TensorFlow keeps that in which they were traced: of what reads a resource and what writes it, and of what has an
    effect of another kind, such as a check of numbers (`AutomaticControlDependencies`).
    """

    def __init__(self) -> None:
        self._last: dict[Any, tf.Operation] = {}
        self._reads: dict[Any, list[tf.Operation]] = defaultdict(list)

    def awaited(self, op: tf.Operation) -> list[tf.Operation]:
        """What the next operation that was made waits for."""
        if not private_api.is_stateful(op.type):
            return []
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
