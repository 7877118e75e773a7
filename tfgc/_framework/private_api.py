"""What surrounds a call and is no argument of it, as Keras and TensorFlow keep it for a thread or a graph.

TensorFlow knows, but has no public API that says, whether a tape records a tensor, whether a forward accumulator
follows it, and whether XLA will compile the graph being traced.
"""

import contextlib
import functools
import inspect
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfgc._framework import internals, versions
from tfgc._framework.internals import global_state, record
from tfgc._framework.versions import attribute


@functools.cache
def _sources() -> str:
    """Those of the modules of Keras that keep something of the thread by name."""
    modules = (m for name, m in sys.modules.items() if name.startswith("keras.") and "global_state" in vars(m))
    found = ""
    for module in modules:
        with contextlib.suppress(OSError):  # installed without sources
            found += inspect.getsource(module)
    return found


def kept_by_name(name: str) -> str:
    """A name under which Keras keeps something of the thread: for others it gives None, and no error."""
    if _sources() and f'"{name}"' not in _sources():
        raise versions.unsupported(f"Keras keeps no {name!r}")
    return name


_CALL_CONTEXT, _AUTOCAST = kept_by_name("current_call_ctx"), kept_by_name("autocast_scope")
_STATELESS, _SYMBOLIC = kept_by_name("stateless_scope"), kept_by_name("symbolic_scope")
_GLOBAL_SEED = kept_by_name("global_seed_generator")
# Of the calls that surround a trace in a thread of its own, which are none of that. Variables to be initialized are in
# a list of each thread: those in a list that two threads share would be initialized twice.
_AROUND = frozenset(
    [_CALL_CONTEXT, _AUTOCAST, _STATELESS, _SYMBOLIC]
    + list(map(kept_by_name, ("uninitialized_variables", "name_scope_stack", "remat_scope_stack")))
)
# A context in which no tape records what runs, whether it is eager or not.
no_recording = record.stop_recording
# Whether a tape or a forward accumulator of this thread may follow what runs.
could_record = record.could_possibly_record
# What `tf.random.set_seed` was last given.
tensorflow_seed = internals.context.global_seed


def of_thread() -> dict[str, Any]:
    """What Keras keeps for this thread by name, such as policies and the global seed, but for the calls around."""
    return {name: value for name, value in vars(global_state.GLOBAL_STATE_TRACKER).items() if name not in _AROUND}


def add_to_thread(values: dict[str, Any]) -> None:
    """Let Keras keep for this thread what it has nothing for yet; `keras.utils.set_random_seed` leaves a seed None."""
    for name, value in values.items():
        if _kept(name) is None:
            global_state.set_global_attribute(name, value)


def _kept(name: str) -> Any:
    return global_state.get_global_attribute(name)


def call_context() -> dict[str, Any] | None:
    """What Keras's call context holds now, its entry layer apart; None outside of any call."""
    context = _kept(_CALL_CONTEXT)
    return None if context is None else {k: v for k, v in vars(context).items() if k != "entry_layer"}


def set_call_context(values: dict[str, Any] | None) -> None:
    """Let Keras's call context hold `values`: an explicit `training=` stays there for the calls that follow."""
    context = _kept(_CALL_CONTEXT)
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
    context = _kept(_CALL_CONTEXT)
    return None if context is None else context.training


def stateless_scope_here() -> Any:
    """The innermost `keras.StatelessScope` of this thread; None if there is none."""
    return _kept(_STATELESS)


def in_symbolic_scope() -> bool:
    """Whether Keras calls a model on symbolic tensors, only to look at shapes or to build it."""
    return _kept(_SYMBOLIC) is not None


def autocast_scope() -> Any:
    """The scope in which Keras casts the variables that a layer reads; None if there is none."""
    return _kept(_AUTOCAST)


def enter_call(values: dict[str, Any], autocast: Any) -> None:
    """Let this thread stand in a call of Keras: what its context holds, its entry layer apart, and its autocast scope.

    No layer takes itself for the outermost one then, and clears losses.
    """
    context = internals.CallContext(entry_layer=None)
    vars(context).update(values)
    global_state.set_global_attribute(_CALL_CONTEXT, context)
    global_state.set_global_attribute(_AUTOCAST, autocast)


def let_pass(error: Exception) -> None:
    """Let Keras raise an error out of a layer's call as it is, without a list of the arguments of the call."""
    error._keras_call_info_injected = True  # pyright: ignore[reportAttributeAccessIssue]


def global_seed() -> Any:
    """The generator that Keras draws from without a seed of its own; None before its first use."""
    return _kept(_GLOBAL_SEED)


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
