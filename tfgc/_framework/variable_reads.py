"""Reads of many variables that tapes know by one record, until gradients of gradients need more."""

import contextlib
import functools
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from tfgc._framework import graph_building
from tfgc._framework.internals import record, resource_variable_ops


def note(variables: Iterable[Any]) -> None:
    """Let tapes know that variables of TensorFlow were read, as their reads do."""
    for variable in variables:
        resource_variable_ops.variable_accessed(variable)


def record_each(values: Sequence[tf.Tensor], handles: Sequence[Any]) -> None:
    """Let tapes know of each value that it was read from the variable of a handle."""
    for value, handle in zip(values, handles):
        record.record_operation("ReadVariableOp", [value], [handle], lambda upstream: [upstream])


class Reads:
    """Variables that were read now, as the tapes that watch them by now remember it.

    Tapes get a record of a tensor that is made of all handles, but not of the values. What is made of it later, they
    alone know of: a tape that was begun after the call, or was not recording, takes the values for constants.
    """

    def __init__(self, handles: Sequence[Any]) -> None:
        self._handles = list(handles)
        self._upstream: dict[int, Any] = {}
        self._nothing = tf.constant(0.0)
        with record.stop_recording():
            self._read = tf.identity(self._nothing)
        record.record_operation("ReadVariableOp", [self._read], self._handles, self._gradients)

    def values(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Copies of the values, in the order of the handles, whose gradients flow to the variables."""
        # Tapes know of what a graph captures, as that of a `tf.GradientTape.jacobian` does, and not of what is in it.
        with contextlib.nullcontext() if tf.executing_eagerly() else graph_building.eagerly_recorded():
            if not record.should_record_backprop([self._read]):
                return list(values)
            noted = [functools.partial(self._add, i) for i in range(len(values))]
            return [graph_building.recorded_copy(v, note, self._read) for v, note in zip(values, noted)]

    def _add(self, i: int, upstream: Any) -> tf.Tensor:
        before = self._upstream.get(i)
        self._upstream[i] = (
            upstream if before is None else tf.convert_to_tensor(before) + tf.convert_to_tensor(upstream)
        )
        return self._nothing

    def _gradients(self, _: tf.Tensor) -> list[Any]:
        """The gradients that came to the values, which all do before; None where none came."""
        found, self._upstream = self._upstream, {}
        return [found.get(i) for i in range(len(self._handles))]
