"""Branches, one of which is taken: what the others read has no gradient in eager code, and zeros from a trace."""

from typing import Any

import tensorflow as tf

from tfgc._pure import obstacles

_BRANCHING = frozenset({"If", "StatelessIf", "Case", "StatelessCase"})


def differ(graph: Any) -> bool:
    """Whether gradients can flow through a tensor that enters some branches of a graph and not those beside them."""
    definition = graph.as_graph_def()
    functions = {function.signature.name: function for function in definition.library.function}
    nodes = [*definition.node, *(node for function in functions.values() for node in function.node_def)]
    branches = (obstacles.functions_called(node) for node in nodes if node.op in _BRANCHING)
    return any(len({_entered(functions[name]) for name in names}) > 1 for names in branches)


def _entered(function: Any) -> frozenset[int]:
    """The positions of the floating arguments that a function reads."""
    reads = [*(name for node in function.node_def for name in node.input), *function.ret.values()]
    read = {name.lstrip("^").partition(":")[0] for name in reads}
    arguments = enumerate(function.signature.input_arg)
    return frozenset(i for i, argument in arguments if argument.name in read and _flows(tf.as_dtype(argument.type)))


def _flows(dtype: tf.DType) -> bool:
    return dtype.is_floating or dtype.is_complex or dtype == tf.resource
