"""Share constants between a replay and the first run.

When TensorFlow optimizes a graph, it computes what depends on constants alone, and keeps it: with a
static batch that may be as large as an activation (`tf.zeros(tf.shape(x))`, a mask, positions). Equal constants are
merged, unless they wait for different operations. All that runs in a replay waits for its upstream gradients, so
every replay would hold another copy. So constants are made not to wait, and what reads them waits instead.
"""

import contextlib
from collections.abc import Iterator, Sequence

import tensorflow as tf

from tfgc._framework.versions import attribute

# TensorFlow computes larger ones in each step (`ConstantFoldingOptions`); in a replay these should wait.
_MOST = 10 * 2**20
_LEAST = 2**10


@contextlib.contextmanager
def shared(upstream: Sequence[tf.Tensor]) -> Iterator[None]:
    """Keep constants made in here from waiting for `upstream`, which all else waits for by control dependencies."""
    graph = tf.compat.v1.get_default_graph()
    before = len(graph.get_operations())
    yield
    fence = [tensor.op for tensor in upstream if tensor.graph is graph]
    made = graph.get_operations()[before:]
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
    constant: set[tf.Operation] = set()
    free: set[tf.Operation] = set()
    for op in operations:
        if op.type == "Const" or (op.inputs and not op.op_def.is_stateful and all(t.op in constant for t in op.inputs)):
            constant.add(op)
    for op in reversed(operations):
        if op in constant and (op in free or any(_LEAST <= _bytes(t) <= _MOST for t in op.outputs)):
            free.update([op, *(t.op for t in op.inputs)])
    return free


def _bytes(tensor: tf.Tensor) -> int:
    return (tensor.shape.num_elements() or 0) * tensor.dtype.size
