"""What surrounds a call and is no argument of it. The only private reads.

Keras keeps the `training` value and the autocast dtype in thread-wide state;
a replay runs much later, outside of the layers that set them, and must see
them again. TensorFlow knows, and has no public way to tell, whether a tape
records a tensor, whether a forward accumulator follows it, and whether XLA
will compile the graph being traced. All of that is read here and nowhere else,
so that a change in a new release is a change in one file.
"""

import contextlib

import tensorflow as tf
from keras.src.backend.common import global_state, stateless_scope
from keras.src.backend.common.variables import AutocastScope, get_autocast_scope
from keras.src.layers.layer import CallContext
from tensorflow.python.eager import forwardprop_util, record
from tensorflow.python.framework import op_def_registry
from tensorflow.python.ops import control_flow_util


class CallState:
    """The Keras call context and autocast scope at one moment.

    Attributes:
        key: A hashable value, equal for surroundings that are the same.
    """

    def __init__(self):
        context = global_state.get_global_attribute("current_call_ctx")
        values = dict(vars(context)) if context is not None else {}
        values.pop("entry_layer", None)
        scope = get_autocast_scope()
        self._values = {k: v for k, v in values.items() if v is not None}
        self._autocast = None if scope is None else (scope.dtype,)
        flags = tuple(sorted((k, v if isinstance(v, bool) else id(v)) for k, v in self._values.items()))
        self.key = (flags, self._autocast)

    @contextlib.contextmanager
    def reentered(self):
        """Run a replay as if it still stood where the first run did.

        The context has no entry layer, so no layer takes itself for the
        outermost one and clears the losses that the first run left.
        """
        outer_context = global_state.get_global_attribute("current_call_ctx")
        outer_autocast = get_autocast_scope()
        context = CallContext(entry_layer=None)
        for name, value in self._values.items():
            setattr(context, name, value)
        scope = None if self._autocast is None else AutocastScope(self._autocast[0])
        global_state.set_global_attribute("current_call_ctx", context)
        global_state.set_global_attribute("autocast_scope", scope)
        try:
            yield
        finally:
            global_state.set_global_attribute("current_call_ctx", outer_context)
            global_state.set_global_attribute("autocast_scope", outer_autocast)


def call_context():
    """What Keras's call context holds now, its entry layer apart; None outside of any call."""
    context = global_state.get_global_attribute("current_call_ctx")
    return None if context is None else {k: v for k, v in vars(context).items() if k != "entry_layer"}


def set_call_context(values):
    """Let Keras's call context hold `values`: an explicit `training=` stays there for the calls that follow."""
    context = global_state.get_global_attribute("current_call_ctx")
    if context is not None and values is not None:
        entry = context.entry_layer
        vars(context).clear()
        vars(context).update(values, entry_layer=entry)


def is_inference():
    """Return True inside of a call whose `training` is False."""
    context = global_state.get_global_attribute("current_call_ctx")
    return context is not None and context.training is False


def in_stateless_scope():
    """Return True where Keras variables are served from a table: in a replay, or while Keras only looks at shapes."""
    return stateless_scope.in_stateless_scope()


def storage(variable):
    """Return the `tf.Variable` under a Keras variable, None if not yet built."""
    return variable._value


def read(variables):
    """Read Keras variables as they are stored, whatever the autocast scope."""
    with AutocastScope(None):
        return [tf.convert_to_tensor(variable.value) for variable in variables]


def wants_xla(function):
    """Whether a `tf.function` asks for XLA."""
    return bool(function._jit_compile)


def traces(function):
    """The concrete functions that a `tf.function` keeps."""
    return list(function._function_cache.values())


def is_differentiated(trace):
    """Whether a concrete function was called under an eager tape."""
    return bool(trace._first_order_tape_functions or trace._higher_order_tape_functions)


def no_recording():
    """Let no tape record what runs in here, whether it is eager or not."""
    return record.stop_recording()


def concrete(function, arguments):
    """The function that a `tf.function` runs for these arguments, freed with it: the public way keeps it for good."""
    return function._get_concrete_function_garbage_collected(*arguments)


def call_flat(function, tensors):
    """Call a concrete function on the tensors of its signature, in order, past its checks of them.

    These cost 5 to 10 microseconds for each argument, and are not needed for what was looked up by dtypes and shapes.
    """
    return function._call_flat(tensors, function.captured_inputs)


def shape_of(tensor):
    """The shape of an eager tensor as a plain tuple."""
    return tensor._shape_tuple()


def is_recorded(tensors):
    """Return True if a tape that is active now records any of `tensors`."""
    return record.should_record_backprop(list(tensors))


def has_tangents(tensors):
    """Return True if a forward accumulator follows any of `tensors`."""
    return bool(forwardprop_util.pack_tangents(list(tensors)).tangents)


def replica():
    """Return the number of the replica that calls this in eager `Strategy.run`, None if no strategy does."""
    here = tf.distribute.get_replica_context() if tf.distribute.has_strategy() else None
    return None if here is None else int(here.replica_id_in_sync_group)


def in_xla():
    """Return True while tracing what XLA will compile."""
    return not tf.executing_eagerly() and control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())


def is_stateful(op_type):
    """Return True if running an op of this type twice may differ from once."""
    definition = op_def_registry.get(op_type)
    return definition is not None and definition.is_stateful
