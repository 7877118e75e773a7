"""Operations that give another result, or have another effect, when they run again."""

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from tfgc._error_texts import one_line
from tfgc._framework import private_api
from tfgc._pairs import random_draws

# Stateful by TensorFlow's declaration, yet running them twice is harmless.
_REPEATABLE = frozenset(
    ["ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VarHandleOp", "VariableShape", "VarIsInitializedOp"]
    + ["Placeholder", "StatefulPartitionedCall", "If", "While", "Case", "For", "Assert", "PrintV2", "StringFormat"]
    + ["LookupTableSizeV2", "HashTableV2", "LookupTableFindV2", "Empty", "CheckNumerics", "CheckNumericsV2"]
    + ["CudnnRNN", "CudnnRNNV2", "CudnnRNNV3"]
)
_BRANCHING = frozenset(["If", "StatelessIf", "Case", "StatelessCase"])


def obstacle(graph: Any, share: float = random_draws.SHARE) -> str | None:
    """Name the first op that gives another result or effect when run again."""
    # What random operations draw can be stored, if that is no more than a share of what the graph computes.
    return among(graph.get_operations(), in_functions(graph).values(), share)


def among(operations: Sequence[tf.Operation], called: Iterable[str], share: float = random_draws.SHARE) -> str | None:
    """The same for some operations of a graph, with the obstacles of the functions that they call."""
    for op in operations:
        if writes(op):
            return _remedy(op.type, op.name)
    for found in called:
        return found
    large = random_draws.too_large(operations, share)
    return None if large is None else _remedy(large.type, large.name, " draws what is too large to be stored")


def writes(op: tf.Operation) -> bool:
    """Whether an operation has an effect besides its outputs, so that it runs even if nothing reads these."""
    return op.op_def.is_stateful and op.type not in _REPEATABLE | random_draws.TYPES


def in_functions(graph: Any) -> dict[str, str]:
    """The first obstacle in each function of a graph's branches and loops, and in what it calls, by its name."""
    functions = {f.signature.name: f.node_def for f in graph.as_graph_def().library.function}

    @functools.cache
    def first(name: str) -> str | None:
        for node in functions[name]:
            if node.op not in _REPEATABLE and private_api.is_stateful(node.op):
                return _remedy(node.op, node.name)
        called = (other for node in functions[name] for other in functions_called(node) if other in functions)
        return next(filter(None, map(first, called)), None)

    found = {name: first(name) for name in functions}
    return {name: obstacle for name, obstacle in found.items() if obstacle is not None}


def functions_called(node: Any) -> list[str]:
    """The functions of branches and loops that a node runs, by name."""
    return [f.name for value in node.attr.values() for f in (value.func, *value.list.func) if f.name]


def branches_differ(operations: Sequence[tf.Operation], reads_weights: bool) -> bool:
    """Whether gradients can flow through a tensor that enters some branches of a graph and not those beside them.

    Branches in functions that it calls do not count: eager code has traces of these, too. Those that TensorFlow wraps
    in a function, under a tape in the code, do if there are weights that the graph reads.
    """
    # What a branch that is not taken reads has no gradient in eager code, and zeros from a trace.
    definition = operations[0].graph.as_graph_def()
    functions = {function.signature.name: function for function in definition.library.function}
    names = {op.name for op in operations}
    waiting = [node for node in definition.node if node.name in names]
    while waiting:
        node = waiting.pop()
        if node.op in _BRANCHING and any(map(_may_flow, node.attr["Tout"].list.type)):
            names = functions_called(node)
            if len({_entered(functions[name]) for name in names}) > 1:
                return True
            waiting += [inner for name in names for inner in functions[name].node_def]
        elif reads_weights and "Call" in node.op:
            wrapped = [name for name in functions_called(node) if "cflow_gradient_wrapper" in name]
            waiting += [inner for name in wrapped for inner in functions[name].node_def]
    return False


def _entered(function: Any) -> frozenset[int]:
    """The positions of the floating arguments that a function reads."""
    reads = [*(name for node in function.node_def for name in node.input), *function.ret.values()]
    read = {name.lstrip("^").partition(":")[0] for name in reads}
    arguments = function.signature.input_arg
    return frozenset(i for i, argument in enumerate(arguments) if argument.name in read and _may_flow(argument.type))


def _may_flow(kind: Any) -> bool:
    """Whether a gradient may flow through what has a type, or to the variable that it is."""
    dtype = tf.as_dtype(kind)
    return dtype.is_floating or dtype.is_complex or dtype == tf.resource


def untraceable(error: BaseException) -> str:
    """The obstacle of what cannot be traced, with the reason."""
    return f"it cannot be traced ({one_line(error)}). Use TensorFlow operations if it asks for the values of tensors"


def _remedy(op_type: str, name: str, why: str = "") -> str:
    return (
        f"{op_type} at {name!r}{why}. Draw random numbers with keras.random and keep state in Keras variables "
        "(`self.add_weight`) to let tfgc recompute it"
    )
