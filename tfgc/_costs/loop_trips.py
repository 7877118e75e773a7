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
    definitions = [functions.get(loop.get_attr(part).name) for part in ("cond", "body")]
    if None in definitions:
        return
    condition, body = map(_Function, definitions)
    handed_on = (i for i, output in enumerate(body.outputs) if body.argument(output) == i)
    fixed = {i: _number(tf.get_static_value(loop.inputs[i])) for i in handed_on}
    waiting = [condition.outputs[0]]
    while waiting:
        node = maker(condition.nodes, waiting.pop())
        if node is not None and node.op == "LogicalAnd":
            waiting += node.input[:2]
        elif node is not None and node.op in ("Less", "LessEqual"):
            counter, limit = condition.argument(node.input[0]), condition.constant(node.input[1], fixed)
            if counter is None or limit is None:
                continue
            start, step = _number(tf.get_static_value(loop.inputs[counter])), body.added(counter, fixed)
            if start is not None and step is not None and step > 0:
                yield max(0, math.ceil((limit - start + (node.op == "LessEqual")) / step))


class _Function:
    """A function of a loop, whose arguments are the loop's inputs."""

    def __init__(self, definition: Any) -> None:
        self.nodes = {node.name: node for node in definition.node_def}
        self.outputs = [definition.ret[output.name] for output in definition.signature.output_arg]
        self._arguments = {argument.name: i for i, argument in enumerate(definition.signature.input_arg)}

    def argument(self, tensor: str) -> int | None:
        """Which argument a tensor is; None for what the function makes."""
        while tensor not in self._arguments:
            node = self.nodes.get(tensor.partition(":")[0])
            if node is None or node.op != "Identity":
                return None
            tensor = node.input[0]
        return self._arguments[tensor]

    def constant(self, tensor: str, fixed: Mapping[int, Any]) -> Any:
        """The number that a tensor is in all trips, given those of `fixed` arguments; None if it is not known."""
        node = maker(self.nodes, tensor)
        if node is not None:
            return _number(tf.make_ndarray(node.attr["value"].tensor)) if node.op == "Const" else None
        at = self.argument(tensor)
        return None if at is None else fixed.get(at)

    def added(self, at: int, fixed: Mapping[int, Any]) -> Any:
        """What the function adds to an argument; None if it does anything else with it, or that is not known."""
        node = maker(self.nodes, self.outputs[at])
        if node is None or node.op not in ("Add", "AddV2"):
            return None
        pairs = (node.input[:2], node.input[1::-1])
        return next((self.constant(other, fixed) for one, other in pairs if self.argument(one) == at), None)


def _number(array: Any) -> Any:
    """The number of an array that has one; else None."""
    return array.item() if array is not None and array.size == 1 else None
