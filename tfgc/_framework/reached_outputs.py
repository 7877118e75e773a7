"""Which outputs of a traced function the gradient of an input can come from."""

from typing import Any

import tensorflow as tf

# What passes no gradient on, although it reads and makes floating numbers.
_BLOCKING = frozenset({"StopGradient", "PreventGradient", "ZerosLike", "OnesLike"})
# Unlike lists of tensors, in which loops keep what gradients flow through.
_WITHOUT_GRADIENT = (tf.bool, tf.string)


def reached_outputs(graph: Any, inputs: int, outputs: list[int]) -> list[frozenset[int]]:
    """For each of the first inputs of a function's graph those of some outputs that depend on it.

    Args:
        graph: The graph.
        inputs: How many inputs.
        outputs: Positions of outputs.
    """
    places = {id(tensor): i for i, tensor in enumerate(graph.inputs[:inputs])}
    found: list[set[int]] = [set() for _ in range(inputs)]
    for output in outputs:
        waiting, seen = [graph.outputs[output]], set()
        while waiting:
            tensor = waiting.pop()
            if id(tensor) in seen or tensor.dtype in _WITHOUT_GRADIENT or tensor.dtype.is_integer:
                continue
            seen.add(id(tensor))
            if id(tensor) in places:
                found[places[id(tensor)]].add(output)
            elif tensor.op.type not in _BLOCKING:
                waiting += tensor.op.inputs
    return [frozenset(each) for each in found]
