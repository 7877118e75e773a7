"""Which variables the operations of a trace may write."""

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tfgc._framework import versions

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
