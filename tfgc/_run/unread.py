"""What no result needs, and yet has to be in the graph for the bits of the plain step.

oneDNN joins the gradient of a bias with a gradient of a filter of the same convolution, and sums it otherwise than
alone; what the filter reads makes no difference. It does so where nothing reads the gradient of the filter, too, as
TensorFlow makes both and removes neither: that is left to its graph optimizer, which then leaves the bias alone in
both steps.
"""

from collections import defaultdict
from typing import Any

from tfgc._step.step import Step, Tensor
from tfgc._step.trace import Trace


def unread_filters(trace: Trace, step: Step) -> tuple[list[Any], set[int]]:
    """Nodes of gradients of filters that a step does not have, and the gradients of biases that oneDNN joins with them.

    What a node reads may run behind the gradient of its bias: nothing may wait for that.
    """
    traced: dict[str, list[int]] = defaultdict(list)  # by the gradient that they read
    for i, node in enumerate(trace.nodes):
        if node.op == "Conv2DBackpropFilter":
            traced[node.input[2]].append(i)
    there: dict[Tensor, set[int]] = defaultdict(set)
    for i, op in step.ops.items():
        if op.type == "Conv2DBackpropFilter":
            there[op.inputs[2]].add(op.traced if op.segment else i)
    biases: set[int] = set()
    missing: set[tuple[Tensor, int]] = set()
    for i, op in step.ops.items():
        if op.type == "BiasAddGrad":
            beside = traced[trace.nodes[op.traced if op.segment else i].input[0]]
            found = {(op.inputs[0], j) for j in beside if j not in there[op.inputs[0]]}
            if found:
                biases.add(i)
                missing |= found
    made = [_reading(trace.nodes[j], step.tensor_name(gradient), k) for k, (gradient, j) in enumerate(sorted(missing))]
    return made + _needed(made, trace, step), biases


def _reading(node: Any, gradient: str, number: int) -> Any:
    made = type(node)()
    made.CopyFrom(node)
    made.name = f"unread/{number}/{node.name}"
    made.input[2] = gradient
    return made


def _needed(made: list[Any], trace: Trace, step: Step) -> list[Any]:
    """The other nodes that these follow from, and the step does not have."""
    names = {op.name for op in step.ops.values()}
    nodes = {node.name: node for node in trace.nodes}
    found, reads = [], [name for node in made for name in node.input]
    while reads:
        name = reads.pop().lstrip("^").partition(":")[0]
        if name not in names:
            names.add(name)
            found.append(nodes[name])
            reads += nodes[name].input
    return found
