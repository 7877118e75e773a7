"""Which operations of a step take what XLA needs for the functions that it compiles inside of the step."""

from collections.abc import Mapping

import tensorflow as tf

from tfgc._calls.recording import Trace
from tfgc._calls.tree import Call


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
