"""What TensorFlow knows of a call besides its arguments, and has no public API for.

Whether a tape records a tensor, whether a forward accumulator follows it, whether XLA will compile the graph.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfgc._framework import internals, keras_state
from tfgc._framework.internals import record
from tfgc._framework.versions import attribute

# A context in which no tape records what runs, whether it is eager or not.
no_recording = record.stop_recording
# Whether a tape or a forward accumulator of this thread may follow what runs.
could_record = record.could_possibly_record
# What `tf.random.set_seed` was last given.
tensorflow_seed = internals.context.global_seed


def trains(training: bool | None) -> bool:
    """Whether a call with this `training` is one of training: it says so, or says nothing and a tape records."""
    training = _training_around() if training is None else training
    return record.could_possibly_record() if training is None else bool(training)


def could_train() -> bool:
    """Return False inside a call whose `training` is False, unless a tape records."""
    return record.could_possibly_record() or _training_around() is not False


def _training_around() -> bool | None:
    return (keras_state.call_context() or {}).get("training")


def let_pass(error: Exception) -> None:
    """Let Keras raise an error out of a layer's call as it is, without a list of the arguments of the call."""
    error._keras_call_info_injected = True  # pyright: ignore[reportAttributeAccessIssue]


def storage(variable: keras.Variable) -> Any:
    """Return the `tf.Variable` under a Keras variable, None if not yet built."""
    return attribute(variable, "_value")


def copies(stored: Any) -> list[Any]:
    """The variables under one of a strategy, or the variable itself; none for None."""
    parts = getattr(stored, "values", None)
    return [part for part in (parts if isinstance(parts, tuple) else (stored,)) if part is not None]


def held_bytes(captured: Any) -> int:
    """Bytes of a tensor that a trace captures, or of the variable that it is a handle of; 0 for other resources."""
    kinds = [(captured.shape, captured.dtype)]
    if captured.dtype == tf.resource:
        data = internals.resource_variable_ops.get_eager_safe_handle_data(captured)
        found = data.shape_and_type if data is not None and data.is_set else ()
        kinds = [(tf.TensorShape(each.shape), tf.dtypes.as_dtype(each.dtype)) for each in found]
    return sum((shape.num_elements() or 0) * dtype.size for shape, dtype in kinds)


def handles(variable: keras.Variable | tf.Variable) -> list[Any]:
    """What traces capture of a variable: one handle for each replica."""
    return [part.handle for part in copies(storage(variable) if isinstance(variable, keras.Variable) else variable)]


def updated_by(optimizer: keras.Optimizer, given: Sequence[keras.Variable] | None) -> Sequence[keras.Variable]:
    """The variables that `optimizer.apply` updates: those it was given, or those that the optimizer was built for."""
    return attribute(optimizer, "_trainable_variables") if given is None else given


def note_reads(variables: Iterable[tf.Variable]) -> None:
    """Let tapes know that variables were read, as their reads do."""
    for variable in variables:
        internals.resource_variable_ops.variable_accessed(variable)


def record_reads(reads: Iterable[tuple[tf.Tensor, Any]]) -> None:
    """Let tapes know of each value that it was read from the variable of a handle."""
    for value, handle in reads:
        record.record_operation("ReadVariableOp", [value], [handle], lambda upstream: [upstream])


def is_recorded(tensors: Iterable[Any]) -> bool:
    """Return True if a tape that is active now records any of `tensors`."""
    return record.should_record_backprop(list(tensors))


def has_tangents(tensors: Iterable[Any]) -> bool:
    """Return True if a forward accumulator follows any of `tensors`."""
    return bool(internals.forwardprop_util.pack_tangents(list(tensors)).tangents)


def in_xla() -> bool:
    """Return True while tracing what XLA will compile."""
    in_context = internals.control_flow_util.GraphOrParentsInXlaContext
    return not tf.executing_eagerly() and in_context(tf.compat.v1.get_default_graph())


def converts() -> bool:
    """Whether AutoGraph converts the code that runs now."""
    return internals.ag_ctx.control_status_ctx().status == internals.ag_ctx.Status.ENABLED


def is_stateful(op_type: str) -> bool:
    """Return True if running an op of this type twice may differ from once."""
    definition = internals.op_def_registry.get(op_type)
    return definition is not None and definition.is_stateful
