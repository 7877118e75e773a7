"""What XLA fuses in a whole training step, of which the calls of layers are parts; and what it takes inside of a step.

What one call makes and several others read is written once, but for concatenations: each reader computes these again.
"""

from collections.abc import Iterable, Mapping, Set
from typing import Any

import tensorflow as tf

from tfgc._calls.recording import Trace
from tfgc._calls.step import Call
from tfgc._costs.call_operations import Operations
from tfgc._costs.tensor_buffers import Buffers
from tfgc._costs.xla_fusion import Fusion
from tfgc._step.flop_counts import SHAPE_ONLY


def fusion(
    trace: Trace,
    runs: list[tf.Operation],
    late: Set[tf.Operation],
    free: set[tf.Operation],
    owner: Mapping[tf.Operation, Call],
    buffers: Buffers,
) -> Fusion:
    """Find what is fused, and count its buffers as nothing from now on; `free` are constants and variables."""
    early = [op for op in runs if op not in late]
    operations = Operations(
        early=early,
        late=[op for op in runs if op in late],
        forward=early,
        free=free,
        after_upstream=set(),
        gradients=trace.wanted,
    )
    return Fusion(operations, buffers, [buffers.root(t) for t in trace.batch], _shared(early, owner, buffers))


def _shared(early: Iterable[tf.Operation], owner: Mapping[tf.Operation, Call], buffers: Buffers) -> list[tf.Tensor]:
    """What the forward passes of several calls read."""
    readers: dict[Any, set[Call]] = {}
    roots: dict[Any, tf.Tensor] = {}
    for op in early:
        # Operations that only rename count, too. Without them the results of GroupNormalization and `silu`, which end
        # in one, would be fused: a VAE of KerasHub was compiled to 107 MB then where 77 were predicted, and to 64 for
        # 64 with them.
        for root in map(buffers.root, op.inputs if op.type not in SHAPE_ONLY else ()):
            roots[root.ref()] = root
            readers.setdefault(root.ref(), set()).add(owner[op])
    return [roots[ref] for ref, calls in readers.items() if len(calls) > 1 and roots[ref].op.type != "ConcatV2"]


def temporary(
    trace: Trace, runs: list[tf.Operation], late: set[tf.Operation], owner: Mapping[tf.Operation, Call]
) -> dict[tf.Operation, int]:
    """What XLA takes for functions, as bytes of the first operation forward and backward of the call around each."""
    operations, found = trace.graph.get_operations(), {}
    for first, needed in trace.functions:
        inside = [op for op in runs if owner[op] is owner[operations[first]]]
        for count, backward in ((needed.forward, False), (needed.backward, True)):
            op = next((op for op in inside if (op in late) == backward), None)
            if op is not None:
                found[op] = max(count, found.get(op, 0))
    return found
