"""Let the update of a weight wait for all that reads the weight before it, so that nothing copies it.

TensorFlow updates a weight in place if nobody holds its value, and else in a copy: one more buffer of the size of the
weight. In a graph an update is ready with its gradient, and the gradient with respect to the layer's input, which reads
the weight as well, is often computed after that. Values do not change.

Keras hands all gradients of an update through one operation. Behind it each update depends on every gradient, so that
TensorFlow drops edges from readers as redundant, and then that operation. So it is bypassed, unless it waits for
something itself, such as a check.

Invariant: an edge leads from an operation that was made before the update to one of the update, and what was made
before waits for nothing of the update. So there is no circle. There is none from a reader that the update does not
need, which TensorFlow would compute for the edge alone.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import tensorflow as tf

from tfgc._framework import private_api
from tfgc._framework.versions import attribute

# Their results share the memory of what they read.
VIEWS = {"Identity", "IdentityN", "Reshape", "StopGradient", "PreventGradient", "ExpandDims", "Squeeze"}
# What may stand between a gradient and the operation that computes it.
LAST_STEPS = {*VIEWS, "AddN", "AddV2", "Cast", "Transpose"}
# Bytes of the weights that are worth an edge: smaller buffers come from a pool of their own.
LEAST = 2**18


def bypass_identities(update: Iterable[tf.Operation]) -> None:
    """Let the operations of an update read gradients directly that come through an `IdentityN` among them."""
    for op in update:
        if op.type != "IdentityN" or op.control_inputs:
            continue
        for given, result in zip(op.inputs, op.outputs):
            for reader in list(result.consumers()):
                for i in [i for i, tensor in enumerate(reader.inputs) if tensor is result]:
                    attribute(reader, "_update_input")(i, given)


def wait_for_readers(
    graph: Any, update: Iterable[tf.Operation], variables: Iterable[Any], needed: Callable[[tf.Operation], bool]
) -> None:
    """Let the operations of a graph that update variables wait for what read these before and is `needed`."""
    updating = set(update)
    captured = {id(outer): inner for outer, inner in graph.captures}
    large = (v for v in variables if (v.shape.num_elements() or 0) * tf.as_dtype(v.dtype).size >= LEAST)
    handles = [captured.get(id(handle)) for variable in large for handle in private_api.handles(variable)]
    for handle in handles:
        readers = [op for op in readers_of(handle) if op not in updating and needed(op)]
        for op in () if handle is None else handle.consumers():
            if op in updating and op.type != "ReadVariableOp":
                attribute(op, "_add_control_inputs")(readers)


def readers_of(handle: tf.Tensor | None) -> Iterator[tf.Operation]:
    """What reads the memory of a variable in a graph, by its handle there."""
    reads = () if handle is None else handle.consumers()
    waiting = [op.outputs[0] for op in reads if op.type == "ReadVariableOp"]
    while waiting:
        tensor = waiting.pop()
        for op in tensor.consumers():
            if op.type in VIEWS:
                views = zip(op.inputs, op.outputs)  # A second input is a shape.
                waiting += [view for x, view in views if x is tensor]
            else:
                yield op


def last_steps(gradients: Iterable[tf.Tensor]) -> Iterator[tf.Operation]:
    """The operations of `LAST_STEPS` that gradients come through, and those that compute them."""
    waiting, seen = [tensor.op for tensor in gradients], set[tf.Operation]()
    while waiting:
        op = waiting.pop()
        if op not in seen:
            seen.add(op)
            yield op
            if op.type in LAST_STEPS:
                waiting += [x.op for x in op.inputs]


def needed_by(update: Collection[tf.Operation]) -> Callable[[tf.Operation], bool]:
    """Whether some of these operations read what an operation leads to."""
    known = dict.fromkeys(update, True)

    def needed(op: tf.Operation | None) -> bool:
        path: list[tuple[tf.Operation, Iterator[tf.Operation]]] = []
        while op is not None:
            if op not in known:
                known[op] = False  # unless one of its readers is needed
                # The last readers are gradients, from which the way is short.
                path.append((op, iter([reader for t in op.outputs for reader in reversed(t.consumers())])))
            elif known[op]:
                known.update((passed, True) for passed, _ in path)
                return True
            op = None
            while path and op is None:
                op = next(path[-1][1], None)
                if op is None:
                    path.pop()
        return False

    return needed
