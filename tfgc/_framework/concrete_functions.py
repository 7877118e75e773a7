"""The traces that a `tf.function` keeps, calls past the checks of arguments, and what operations call and write."""

import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfgc._framework import internals
from tfgc._framework.versions import attribute

_graphs: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()


def traces(function: Any) -> list[Any]:
    """The concrete functions that a `tf.function` keeps."""
    return list(attribute(function, "_function_cache").values())


def is_differentiated(trace: Any) -> bool:
    """Whether a concrete function was called under an eager tape."""
    kinds = "_first_order_tape_functions", "_higher_order_tape_functions"
    return any(attribute(trace, kind) for kind in kinds)


def concrete(function: Any, arguments: Sequence[Any], named: Mapping[str, Any] | None = None) -> Any:
    """The function that a `tf.function` runs for these arguments; the public method would keep it forever."""
    return attribute(function, "_get_concrete_function_garbage_collected")(*arguments, **(named or {}))


def called(op: tf.Operation) -> Any:
    """The function that an operation runs as it is, or None if it runs none."""
    if op.type not in ("PartitionedCall", "StatefulPartitionedCall"):
        return None
    return attribute(op.graph, "_get_function")(op.get_attr("f").name)


def called_graph(op: tf.Operation) -> Any:
    """The graph of the function that an operation runs as it is, or None if it runs none, or one without a graph."""
    function = called(op)
    return None if function is None else getattr(function, "graph", None) or _graphs.get(op.get_attr("f").name)


def known(function: Any) -> Any:
    """A concrete function whose graph is found where a copy of a call of it is imported."""
    _graphs[function.name.decode() if isinstance(function.name, bytes) else function.name] = function.graph
    return function


def registered(definition: Any) -> Any:
    """A function that operations may call as long as what is returned lives."""
    no_type: Any = None  # operations call it, no Python does
    return internals.atomic_function.from_function_def(definition, no_type)


def graph_of(op: tf.Operation, name: str) -> Any:
    """The graph of a function that an operation, such as a loop or a branch, calls by `name`; None if it has none."""
    function = attribute(op.graph, "_get_function")(name)
    return None if function is None else function.graph


def call_flat(function: Any, tensors: list[tf.Tensor]) -> Any:
    """Call a concrete function on the tensors of its signature, in order, past its checks of them."""
    # These cost 5 to 10 microseconds for each argument, and are not needed for what was looked up by dtypes and shapes.
    return attribute(function, "_call_flat")(tensors, function.captured_inputs)


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
        for handle in internals.get_read_write_resource_inputs(operation)[1]:
            key = id(outside.get(id(handle)))
            if key in variables:
                found[key] = variables[key]
            else:
                others.append(operation.name)
    return list(found.values()), others
