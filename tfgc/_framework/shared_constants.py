"""Share constants between a replay and the first run.

When TensorFlow optimizes a graph, it computes what depends on constants alone, and keeps it: with a
static batch that may be as large as an activation (`tf.zeros(tf.shape(x))`, a mask, positions). Equal constants are
merged, unless they wait for different operations. All that runs in a replay waits for its upstream gradients, so
every replay would hold another copy. So constants are made not to wait, and what reads them waits instead.
"""

import contextlib
from collections.abc import Iterator, Sequence

import tensorflow as tf

from tfgc._framework import operation_hooks
from tfgc._framework.versions import attribute

# TensorFlow computes larger ones in each step (`ConstantFoldingOptions`); in a replay these should wait.
MOST = 10 * 2**20
_LEAST = 2**10


@contextlib.contextmanager
def shared(upstream: Sequence[tf.Tensor]) -> Iterator[None]:
    """Keep constants made in here from waiting for `upstream`, which all else waits for by control dependencies."""
    graph = tf.compat.v1.get_default_graph()
    with operation_hooks.noted() as made:
        yield
    fence = [tensor.op for tensor in upstream if tensor.graph is graph]
    free = worth_freeing(made)
    for op in free:
        others = [c for c in op.control_inputs if c not in fence]
        if len(others) < len(op.control_inputs):
            attribute(op, "_remove_all_control_inputs")()
            attribute(op, "_add_control_inputs")(others)
    inside = set(made) - free
    for op in inside:
        read = {tensor.op for tensor in op.inputs}
        # TensorFlow adds no control edge to an operation that reads one that has it.
        if read & free and not read & inside:
            attribute(op, "_add_control_inputs")([c for c in fence if c not in op.control_inputs])


def worth_freeing(operations: Sequence[tf.Operation]) -> set[tf.Operation]:
    """Constants that are folded into large ones, and all that they are made of."""
    known: dict[tf.Operation, bool] = {}
    free: set[tf.Operation] = set()
    for op in operations:
        parts = all(_is_folded(t.op, known) for t in op.inputs)
        known[op] = op.type == "Const" or (bool(op.inputs) and not op.op_def.is_stateful and parts)
    for op in reversed(operations):
        if known[op] and (op in free or any(_LEAST <= _bytes(t) <= MOST for t in op.outputs)):
            free.update([op, *(t.op for t in op.inputs if t.op in known)])
    return free.intersection(operations)


def _is_folded(op: tf.Operation, known: dict[tf.Operation, bool]) -> bool:
    """Whether an operation made before, such as the gradient of an added loss, is a small constant; notes it."""
    stack = [op]
    while stack:
        op = stack[-1]
        reads = [t.op for t in op.inputs]
        unknown = next((read for read in reads if read not in known), None)
        if op in known:
            stack.pop()
        elif op.op_def.is_stateful or op.control_inputs or any(_bytes(t) >= _LEAST for t in op.outputs):
            known[op] = False
        elif not reads or unknown is None:
            known[op] = op.type == "Const" if not reads else all(known[read] for read in reads)
        else:
            stack.append(unknown)
    return known[op]


def _bytes(tensor: tf.Tensor) -> int:
    return (tensor.shape.num_elements() or 0) * tensor.dtype.size
