"""What surrounds a call and is no argument of it, as Keras and TensorFlow keep it for a thread or a graph.

TensorFlow knows, but has no public API that says, whether a tape records a tensor, whether a forward accumulator
follows it, and whether XLA will compile the graph being traced. Variables are read here, too.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfgc._framework import internals, versions
from tfgc._framework.internals import AutocastScope, global_state, layer, record, resource_variable_ops, stateless_scope
from tfgc._framework.versions import attribute

CALL_CONTEXT = versions.kept_by_name(layer, "current_call_ctx")
_GLOBAL_SEED = versions.kept_by_name(internals.seed_generator, "global_seed_generator")

# Whether Keras variables are served from a table: in a replay, or while Keras only looks at shapes.
in_stateless_scope = stateless_scope.in_stateless_scope
# Whether Keras calls a model on symbolic tensors, only to look at shapes or to build it.
in_symbolic_scope = internals.symbolic_scope.in_symbolic_scope
# A context in which no tape records what runs, whether it is eager or not.
no_recording = record.stop_recording
# Whether a tape or a forward accumulator of this thread may follow what runs.
could_record = record.could_possibly_record
# What `tf.random.set_seed` was last given.
tensorflow_seed = internals.context.global_seed


def call_context() -> dict[str, Any] | None:
    """What Keras's call context holds now, its entry layer apart; None outside of any call."""
    context = global_state.get_global_attribute(CALL_CONTEXT)
    return None if context is None else {k: v for k, v in vars(context).items() if k != "entry_layer"}


def set_call_context(values: dict[str, Any] | None) -> None:
    """Let Keras's call context hold `values`: an explicit `training=` stays there for the calls that follow."""
    context = global_state.get_global_attribute(CALL_CONTEXT)
    if context is not None and values is not None:
        entry = context.entry_layer
        vars(context).clear()
        vars(context).update(values, entry_layer=entry)


def trains(training: bool | None) -> bool:
    """Whether a call with this `training` is one of training: it says so, or says nothing and a tape records."""
    training = _training_around() if training is None else training
    return record.could_possibly_record() if training is None else bool(training)


def could_train() -> bool:
    """Return False inside a call whose `training` is False, unless a tape records."""
    return record.could_possibly_record() or _training_around() is not False


def _training_around() -> bool | None:
    context = global_state.get_global_attribute(CALL_CONTEXT)
    return None if context is None else context.training


def stateless_scope_here() -> Any:
    """The innermost `keras.StatelessScope` of this thread; None if there is none."""
    return stateless_scope.get_stateless_scope() if in_stateless_scope() else None


def let_pass(error: Exception) -> None:
    """Let Keras raise an error out of a layer's call as it is, without a list of the arguments of the call."""
    error._keras_call_info_injected = True  # pyright: ignore[reportAttributeAccessIssue]


def global_seed() -> Any:
    """The generator that Keras draws from without a seed of its own; None before its first use."""
    return global_state.get_global_attribute(_GLOBAL_SEED)


def set_global_seed(generator: Any) -> None:
    """Make Keras draw from this generator, a new one if None."""
    global_state.set_global_attribute(_GLOBAL_SEED, generator)


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


def read(variables: Iterable[keras.Variable]) -> tuple[list[tf.Tensor], dict[int, Any]]:
    """Read Keras variables as they are stored, whatever the autocast scope.

    Returns:
        The values, and by position the handles of those that tapes watch by now, but do not know the value of: where a
        record for each variable would take longer than the small compiled segment that reads them.
    """
    variables = list(variables)
    if tf.executing_eagerly() and not in_stateless_scope():
        stored = [storage(variable) for variable in variables]
        if are_plain(stored):
            handles = [variable.handle for variable in stored]
            return _read_at_once(stored, handles), dict(enumerate(handles))
    with AutocastScope(None):
        return [tf.convert_to_tensor(variable.value) for variable in variables], {}


def are_plain(stored: Sequence[Any]) -> bool:
    """Whether these are variables of no strategy, on one device."""
    kinds = all(type(variable) is resource_variable_ops.ResourceVariable for variable in stored)
    return kinds and len({variable.handle.device for variable in stored}) <= 1


def _read_at_once(stored: Sequence[Any], handles: Sequence[Any]) -> list[tf.Tensor]:
    """The values of variables that `are_plain`, by one operation."""
    types = tuple(variable.dtype.as_datatype_enum for variable in stored)
    attributes, context = ("N", len(handles), "dtypes", types), internals.context.context()
    run = internals.execute.execute
    read = run("_ReadVariablesOp", len(handles), handles, attributes, context) if handles else []
    if tf.distribute.has_strategy():
        for variable in stored:
            resource_variable_ops.variable_accessed(variable)
    else:  # What that comes to, without a look at the strategy for each.
        for variable in stored:
            if variable.trainable:
                internals.pywrap_tfe.TFE_Py_TapeVariableAccessed(variable)
                internals.pywrap_tfe.TFE_Py_VariableWatcherVariableAccessed(variable)
    return list(read)


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
