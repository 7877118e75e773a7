"""What is stored between segments under XLA: their results, and not what XLA would compute these from again."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfgc._costs import xla_splits
from tfgc._framework import private_api
from tfgc._framework.internals import gen_xla_ops


def in_memory(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Results of a first run. Under XLA those that products in parts make are behind a barrier, which stores them.

    Else XLA keeps the parts for the replays that read them, and adds them up there: in a GPT four times the bytes of
    each checkpoint. Other results have no barrier: it made plans larger, as one before each replay did, since what else
    reads the tensor kept another copy of it.
    """
    if not private_api.in_xla():
        return [*tensors]
    return [_stored(t) if t.dtype.is_floating and xla_splits.is_made_of_parts(t) else t for t in tensors]


def _stored(tensor: tf.Tensor) -> tf.Tensor:
    made: Any = gen_xla_ops.xla_optimization_barrier([tensor])
    return made[0]
