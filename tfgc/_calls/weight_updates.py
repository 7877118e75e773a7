"""What updates of weights take in a step, while they run."""

import tensorflow as tf

from tfgc._calls.recording import Trace
from tfgc._costs.tensor_buffers import Buffers
from tfgc._costs.update_bytes import NO_UPDATE, Update


def temporary(trace: Trace, update: Update, buffers: Buffers) -> dict[tf.Operation, int]:
    """Bytes of the update of each weight, by the operation that makes its gradient, or the last one for all of them.

    Where a trace shows no updates, as of one call of a model, each gradient is taken for one of a weight of its size.
    """
    if update == NO_UPDATE:
        return {}
    # Of a sparse gradient the values: its rows may be known from the start of the step.
    known = [(u.gradient, u.weight_bytes, u.is_sparse) for u in trace.updates if not u.gradient.dtype.is_integer]
    held = known or [(gradient, buffers.bytes(buffers.root(gradient)), False) for gradient in trace.wanted]
    if update.needs_all and held:
        order = {op: i for i, op in enumerate(trace.graph.get_operations())}
        last = max((gradient for gradient, *_ in held), key=lambda gradient: order[gradient.op])
        held = [(last, *what) for _, *what in held]
    found: dict[tf.Operation, int] = {}
    for gradient, size, is_sparse in held:
        op = buffers.root(gradient).op
        found[op] = max(found.get(op, 0), round(size * (update.of_rows if is_sparse else update.running)))
    return found
