"""What a replay reads under XLA: the checkpoint, and not what XLA would compute the checkpoint from again."""

from collections.abc import Sequence

import tensorflow as tf

from tfgc._costs import xla_splits
from tfgc._framework import private_api
from tfgc._framework.internals import gen_xla_ops


def in_memory(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Arguments of a segment. Under XLA those that products in parts make are behind a barrier, which stores them.

    Else XLA keeps the parts for the replay and adds them up there: in a GPT four times the bytes of each checkpoint. A
    barrier before each replay is no better elsewhere: what XLA concatenates needs less as it is.
    """
    if not private_api.in_xla():
        return [*tensors]
    made_of_parts = [t.dtype.is_floating and xla_splits.is_made_of_parts(t) for t in tensors]
    return [gen_xla_ops.xla_optimization_barrier([t])[0] if held else t for t, held in zip(tensors, made_of_parts)]
