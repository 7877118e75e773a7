"""What the operations of a trace may write, and in which order TensorFlow will keep that."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf

from tfgc._framework import private_api, versions

try:
    from tensorflow.python.framework.auto_control_deps_utils import get_read_write_resource_inputs
except ImportError as error:
    raise versions.unsupported(error) from error


def written_variables(
    graph: Any, operations: Iterable[tf.Operation], known: Iterable[tf.Variable]
) -> tuple[list[tf.Variable], list[str]]:
    """The variables that some operations of a function's graph may write, functions that they call included.

    Args:
        graph: The graph.
        operations: Some of its operations.
        known: Variables that may be among them. TensorFlow does not list those that are made in the trace.

    Returns:
        The variables, and the names of operations that may write what is no variable, such as a table.
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


def kept_in_order(operations: Iterable[tf.Operation]) -> Iterator[tuple[tf.Operation, tf.Operation]]:
    """Pairs of operations of which the second waits for the first once their function is complete.

    TensorFlow keeps effects in the order in which they were traced: what reads a resource and what writes it, and what
    has an effect of another kind, such as a check of numbers (`AutomaticControlDependencies`).

    Args:
        operations: Of one graph, in the order in which they were made.
    """
    last: dict[Any, tf.Operation] = {}
    reads: dict[Any, list[tf.Operation]] = defaultdict(list)
    for op in operations:
        if not private_api.is_stateful(op.type):
            continue
        read, written = ([tensor.ref() for tensor in found] for found in get_read_write_resource_inputs(op))
        if not read and not written:
            written = [None]
        for resource in read:
            if resource in last:
                yield last[resource], op
            reads[resource].append(op)
        for resource in written:
            yield from ((reader, op) for reader in reads.pop(resource, ()))
            if resource in last:
                yield last[resource], op
            last[resource] = op
