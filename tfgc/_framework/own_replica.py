"""A thread of its own for a trace that belongs to a `tf.distribute.Strategy`: to its scope, or to one of its replicas.

TensorFlow keeps for each thread which that is, and variables of a strategy are looked up by it.
"""

import functools
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import tensorflow as tf

from tfgc._errors import UnsupportedModelError
from tfgc._framework import isolated_traces
from tfgc._framework.diverted_calls import DivertedCalls
from tfgc._framework.versions import attribute

Result = TypeVar("Result")
_MEETINGS = DivertedCalls(tf.distribute.ReplicaContext, "merge_call")
_ALONE = tf.distribute.OneDeviceStrategy, tf.distribute.TPUStrategy  # whose replicas are not threads


def key() -> Hashable:
    """The strategy of this thread and the number of its replica, None outside of these."""
    if not tf.distribute.has_strategy():
        return None
    context = tf.distribute.get_replica_context()
    number: Any = None if context is None else context.replica_id_in_sync_group
    return tf.distribute.get_strategy(), number.ref() if isinstance(number, tf.Tensor) else number


def in_own_thread(function: Callable[[], Result]) -> Result:
    """Call a function in a thread of its own, as `isolated_traces` does, in the strategy and replica of this one."""
    here = list(_modes())
    return isolated_traces.in_own_thread(functools.partial(_run, here, function) if here else function)


def _run(here: list, function: Callable[[], Result]) -> Result:
    _modes()[:] = here  # These go with the thread.
    with _MEETINGS.to(_refused):
        return function()


def _modes() -> list:
    return attribute(tf.compat.v1.get_default_graph(), "_distribution_strategy_stack")


def _refused(*args: Any, **kwargs: Any) -> Any:
    if isinstance(tf.distribute.get_strategy(), _ALONE):
        return _MEETINGS.original(*args, **kwargs)
    raise UnsupportedModelError("replicas of a tf.distribute.Strategy wait for one another in it")
