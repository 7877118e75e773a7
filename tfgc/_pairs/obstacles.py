"""Operations that give another result, or have another effect, when they run again."""

from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfgc._framework import private_api

# Those that draw from a state that nobody can read, or from that of a `tf.random.Generator`.
RANDOM = frozenset(
    ["RandomUniform", "RandomUniformInt", "RandomStandardNormal", "TruncatedNormal", "ParameterizedTruncatedNormal"]
    + ["RandomGamma", "RandomPoisson", "RandomPoissonV2", "RandomShuffle", "RandomCrop", "Multinomial"]
    + ["SampleDistortedBoundingBox", "SampleDistortedBoundingBoxV2", "UniformCandidateSampler", "AllCandidateSampler"]
    + ["LogUniformCandidateSampler", "FixedUnigramCandidateSampler", "LearnedUnigramCandidateSampler"]
    + ["ThreadUnsafeUnigramCandidateSampler", "RngReadAndSkip", "RngSkip", "StatefulRandomBinomial"]
)
# Stateful by TensorFlow's declaration, yet running them twice is harmless.
_REPEATABLE = frozenset(
    ["ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VarHandleOp", "VariableShape", "VarIsInitializedOp"]
    + ["Placeholder", "StatefulPartitionedCall", "If", "While", "Case", "For", "Assert", "PrintV2", "StringFormat"]
    + ["LookupTableSizeV2", "HashTableV2", "LookupTableFindV2", "Empty", "CheckNumerics", "CheckNumericsV2"]
    + ["CudnnRNN", "CudnnRNNV2", "CudnnRNNV3"]
)
_BRANCHING = frozenset(["If", "StatelessIf", "Case", "StatelessCase"])


def draws(graph: Any) -> bool:
    """Whether a graph, or a function that it calls, draws random numbers that it is not given the seed of."""
    return any(node.op in RANDOM for node in _nodes(graph))


def effect(graph: Any, variables: dict[str, str]) -> str | None:
    """What a graph, or a function that it calls, does besides giving results; `variables` are named by their inputs."""
    for node in _nodes(graph):
        if node.op in RANDOM:
            return f"{node.op} at {node.name!r} draws random numbers"
        if private_api.is_stateful(node.op) and node.op not in _REPEATABLE:
            changed = next((variables[name] for name in node.input if name in variables), None)
            return (f"it updates {changed!r}" if changed else node.op) + f" at {node.name!r}"
    return None


def _nodes(graph: Any) -> Iterator[Any]:
    definition = graph.as_graph_def()
    yield from definition.node
    for function in definition.library.function:
        yield from function.node_def


def _functions_called(node: Any) -> list[str]:
    """The functions of branches and loops that a node runs, by name."""
    return [f.name for value in node.attr.values() for f in (value.func, *value.list.func) if f.name]


def branches_differ(graph: Any, operations: Sequence[tf.Operation], reads_weights: bool) -> bool:
    """Whether gradients can flow through a tensor that enters some branches and not those beside them.

    Branches in functions that are called do not count: eager code has traces of these, too. Those that TensorFlow wraps
    in a function, under a tape in the code, do if there are weights that the graph reads.

    Args:
        graph: A graph.
        operations: Those of its operations that are looked at.
        reads_weights: Whether it reads weights.
    """
    # What a branch that is not taken reads has no gradient in eager code, and zeros from a trace.
    definition, looked_at = graph.as_graph_def(), {op.name for op in operations}
    functions = {function.signature.name: function for function in definition.library.function}
    waiting = [node for node in definition.node if node.name in looked_at]
    while waiting:
        node = waiting.pop()
        if node.op in _BRANCHING and any(map(_may_flow, node.attr["Tout"].list.type)):
            names = _functions_called(node)
            if len({_entered(functions[name]) for name in names}) > 1:
                return True
            waiting += [inner for name in names for inner in functions[name].node_def]
        elif reads_weights and "Call" in node.op:
            wrapped = [name for name in _functions_called(node) if "cflow_gradient_wrapper" in name]
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
