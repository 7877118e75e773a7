"""How often a loop of a graph runs, by the lists of tensors that it walks over, or by a counter in its condition.

`Functions` are those of the graph's library, by name: in graphs of TensorFlow 2 a loop calls one for its condition and
one for its body.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import tensorflow as tf

Functions: TypeAlias = Mapping[str, Any]
LOOPS = ("While", "StatelessWhile")


def functions_of(graph: Any) -> Functions:
    """The functions of a graph, if it has loops."""
    if not any(op.type in LOOPS for op in graph.get_operations()):
        return {}
    return {function.signature.name: function for function in graph.as_graph_def(add_shapes=True).library.function}


def maker(nodes: Mapping[str, Any], tensor: str) -> Any:
    """The node that makes a tensor of a function, behind identities; None for an argument."""
    node = nodes.get(tensor.partition(":")[0])
    return maker(nodes, node.input[0]) if node is not None and node.op == "Identity" else node


def trips(loop: tf.Operation, functions: Functions) -> int:
    """How often a loop runs at most; 1 where nothing says it."""
    lengths = [t.op.inputs[0].shape[0] for t in loop.inputs if t.op.type == "TensorListFromTensor"]
    reserved = [tf.get_static_value(t.op.inputs[1]) for t in loop.inputs if t.op.type == "TensorListReserve"]
    walked = [int(n) for n in [*lengths, *reserved] if n is not None]
    return max(walked) if walked else min(_counted(loop, functions), default=1)


def _counted(loop: tf.Operation, functions: Functions) -> Iterator[int]:
    """For each counter that ends a loop how often it lets it run."""
    condition, body = (functions.get(loop.get_attr(part).name) for part in ("cond", "body"))
    if condition is None or body is None:
        return
    in_condition, in_body = ({node.name: node for node in function.node_def} for function in (condition, body))
    argument = _Arguments(condition), _Arguments(body)
    waiting = [condition.ret[condition.signature.output_arg[0].name]]
    while waiting:
        node = maker(in_condition, waiting.pop())
        if node is None:
            continue
        if node.op == "LogicalAnd":
            waiting += node.input[:2]
        if node.op not in ("Less", "LessEqual"):
            continue
        at = argument[0].position(in_condition, node.input[0])
        if at is None:
            continue
        start, limit = tf.get_static_value(loop.inputs[at]), argument[0].value(in_condition, node.input[1], loop)
        added = maker(in_body, body.ret[body.signature.output_arg[at].name])
        if added is None or added.op not in ("Add", "AddV2"):
            continue
        steps = [argument[1].value(in_body, x, loop) for x in added.input[:2]]
        counts = [argument[1].position(in_body, x) == at for x in added.input[:2]]
        step = next((other for one, other in zip(counts, reversed(steps)) if one), None)
        if start is not None and limit is not None and step is not None and step > 0:
            yield max(0, math.ceil((limit - start + (node.op == "LessEqual")) / step))


class _Arguments:
    """The arguments of a function of a loop, which are the loop's inputs."""

    def __init__(self, function: Any) -> None:
        self._positions = {argument.name: i for i, argument in enumerate(function.signature.input_arg)}

    def position(self, nodes: Mapping[str, Any], tensor: str) -> int | None:
        """Which argument a tensor is; None for what the function makes."""
        while tensor not in self._positions:
            node = nodes.get(tensor.partition(":")[0])
            if node is None or node.op != "Identity":
                return None
            tensor = node.input[0]
        return self._positions[tensor]

    def value(self, nodes: Mapping[str, Any], tensor: str, loop: tf.Operation) -> Any:
        """The number that a tensor is in all trips; None if it is not known."""
        node = maker(nodes, tensor)
        if node is not None:
            return tf.make_ndarray(node.attr["value"].tensor).item() if node.op == "Const" else None
        at = self.position(nodes, tensor)
        return None if at is None else tf.get_static_value(loop.inputs[at])
