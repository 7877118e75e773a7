"""What operations of a graph write."""

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

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
