"""Read variables in an eager call: those of one device by one operation, each recorded as if it were read alone.

An operation for each variable takes most of the time that a small compiled segment costs beyond its plain function.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfgc._framework.internals import context, execute, record, resource_variable_ops

_ALL, _ONE = "_ReadVariablesOp", "ReadVariableOp"


def are_plain(stored: Sequence[Any]) -> bool:
    """Whether these are variables of no strategy, on one device."""
    if any(type(variable) is not resource_variable_ops.ResourceVariable for variable in stored):
        return False
    first = stored[0].handle.device if stored else None
    return all(variable.handle.device == first for variable in stored)


def handles(stored: Sequence[Any]) -> list[Any]:
    """The handles of variables, None for those of a strategy."""
    return [v.handle if type(v) is resource_variable_ops.ResourceVariable else None for v in stored]


def values(stored: Sequence[Any]) -> list[tf.Tensor]:
    """The values of variables that `are_plain`."""
    handles = [variable.handle for variable in stored]
    types = tuple(variable.dtype.as_datatype_enum for variable in stored)
    attributes = ("N", len(handles), "dtypes", types)
    read = execute.execute(_ALL, len(handles), handles, attributes, context.context()) if handles else []
    for variable, handle, value in zip(stored, handles, read):
        resource_variable_ops.variable_accessed(variable)
        record.record_operation(_ONE, [value], [handle], lambda upstream: [upstream])
    return list(read)
