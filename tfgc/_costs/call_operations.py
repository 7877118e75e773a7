"""The operations of one traced call, sorted by when a training step runs them.

An operation is *late* if it depends on an upstream gradient (through data or control edges) and *early* otherwise.
"""

import dataclasses
from collections.abc import Iterable, Set
from typing import Any

import tensorflow as tf

from tfgc._framework import operation_order


@dataclasses.dataclass(frozen=True)
class Call:
    """The tensors of one traced call; `gradients` are those of its sources and of its trainable variables.

    `scope` is what the names of its operations begin with in a step.
    """

    graph: Any
    inputs: list[tf.Tensor]
    variables: list[tf.Tensor]
    outputs: list[tf.Tensor]
    upstream: list[tf.Tensor]
    gradients: list[Any]
    sources: list[tf.Tensor]
    scope: str = ""


@dataclasses.dataclass(frozen=True)
class Operations:
    """The operations of a call that a step runs, in the order in which they were traced."""

    early: list[tf.Operation]  # those that depend on no upstream gradient
    late: list[tf.Operation]  # the others
    forward: list[tf.Operation]  # those among the early ones that an output depends on
    free: set[tf.Operation]  # constants and variables, which cost a step nothing
    after_upstream: set[tf.Operation]  # upstream gradients, and all that depends on one, run or not
    gradients: list[tf.Tensor]  # the tensors of all gradients


def classified(call: Call) -> Operations:
    """Sort the operations of a call."""
    operations = call.graph.get_operations()
    after_upstream: set[tf.Operation] = set()
    constant: set[tf.Operation] = set()  # TensorFlow folds these.
    upstream = refs(call.upstream)
    for op in operations:
        if op.type == "Placeholder":
            after_upstream.update([op] if op.outputs[0].ref() in upstream else [])
        elif any(t.op in after_upstream for t in op.inputs) or any(c in after_upstream for c in op.control_inputs):
            after_upstream.add(op)
        elif all(t.op in constant for t in op.inputs):
            constant.add(op)
    free = constant | {t.op for t in call.variables}
    gradients = [t for g in call.gradients if g is not None for t in tf.nest.flatten(g, expand_composites=True)]
    needed, forward = ancestors([*call.outputs, *gradients]), ancestors(call.outputs)
    computed = [op for op in operations if op in needed and op not in free and op.type != "Placeholder"]
    early = [op for op in computed if op not in after_upstream]
    return Operations(
        early=early,
        late=[op for op in computed if op in after_upstream],
        forward=[op for op in early if op in forward],
        free=free,
        after_upstream=after_upstream,
        gradients=gradients,
    )


def ancestors(tensors: Iterable[tf.Tensor], ends: Set[tf.Operation] = frozenset()) -> set[tf.Operation]:
    """All operations that some tensors depend on, as far as `ends`."""
    return operation_order.reached((t.op for t in tensors), lambda op: () if op in ends else [t.op for t in op.inputs])


def refs(tensors: Iterable[tf.Tensor]) -> set[Any]:
    """Tensors as keys of a set."""
    return {t.ref() for t in tensors}
