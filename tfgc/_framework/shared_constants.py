"""Share constants between a replay and the first run.

When TensorFlow optimizes a graph, it computes what depends on constants alone, and keeps it: with a
static batch that may be as large as an activation (`tf.zeros(tf.shape(x))`, a mask, positions). Equal constants are
merged, unless they wait for different operations. All that runs in a replay waits for its upstream gradients, so
every replay would hold another copy. So constants are made not to wait, and what reads them waits instead. Small ones
neither: a replay has one for each shape and axis, and TensorFlow takes time for each edge.

First runs get edges by the same rule: what is large waits for their arguments (`drawn_in_time`).
"""

import contextlib
from collections.abc import Iterable, Iterator, Sequence

import tensorflow as tf

from tfgc._framework import operation_hooks
from tfgc._framework.versions import attribute

# TensorFlow computes larger ones in each step (`ConstantFoldingOptions`); in a replay these should wait.
MOST = 10 * 2**20
_LEAST = 2**10
Edge = tuple[tf.Operation, list[tf.Operation]]


@contextlib.contextmanager
def waiting(upstream: Sequence[tf.Tensor]) -> Iterator[None]:
    """Let what is made in here, in the graph being built, wait for `upstream`."""
    graph = tf.compat.v1.get_default_graph()
    with operation_hooks.noted() as made:
        yield
    _add(fence(made, (), [tensor for tensor in upstream if tensor.graph is graph]))


def _add(edges: Iterable[Edge]) -> None:
    for op, gates in edges:
        attribute(op, "_add_control_inputs")(gates)


def fence(
    operations: Iterable[tf.Operation], held: Iterable[tf.Tensor], gates: Sequence[tf.Tensor], least: int = 0
) -> Iterator[Edge]:
    """Edges by which `operations` that depend on none of `held` wait for `gates`.

    Constants do not, nor what makes fewer than the `least` bytes.
    """
    operations = [op for op in operations if op.type != "Placeholder"]
    free = worth_freeing(operations)
    after = {tensor.op for tensor in held}
    for op in operations:
        if op not in free and op.type != "Const":
            if not any(tensor.op in after for tensor in op.inputs) and not after.intersection(op.control_inputs):
                if sum(map(_bytes, op.outputs)) < least:
                    continue
                yield op, [gate.op for gate in gates]
            after.add(op)


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
