"""Which operations of a rewritten step give other bits when they run again: none may."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfgc._run.emit import Built
from tfgc._step.step import FROM_HOST, Step
from tfgc._step.trace import Trace


def unlike(trace: Trace, step: Step, given: Sequence[tf.Tensor]) -> list[str]:
    """The names of traced operations of which a copy, in one run of the step, has other bits than the first run.

    In their order: what follows from the first one differs as well. Variables change as in any step.
    """
    copies = [op for op in map(step.ops.__getitem__, step.order) if op.segment and op.type != FROM_HOST]
    names = [(step.ops[copy.traced].name, copy.name) for copy in copies]

    def compared(*given: tf.Tensor) -> list[tf.Tensor]:
        Built(trace, step, xla=False)(given)
        graph: Any = tf.compat.v1.get_default_graph()
        return [_are_alike(*(graph.get_operation_by_name(name).outputs for name in pair)) for pair in names]

    found = tf.function(compared, autograph=False)(*given)
    return list(dict.fromkeys(first for (first, _), is_alike in zip(names, found) if not is_alike))


def _are_alike(first: Sequence[tf.Tensor], copy: Sequence[tf.Tensor]) -> tf.Tensor:
    values = [pair for pair in zip(first, copy) if pair[0].dtype not in (tf.variant, tf.resource)]
    return tf.reduce_all([tf.reduce_all(tf.equal(_bits(one), _bits(other))) for one, other in values] or [True])


def _bits(value: tf.Tensor) -> tf.Tensor:
    return value if value.dtype in (tf.bool, tf.string) else tf.bitcast(value, tf.uint8)
