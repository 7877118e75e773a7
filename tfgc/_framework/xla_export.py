"""What XLA's compiler gets, and what it answers: a function as StableHLO, and the memory of one that it compiles."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfgc._core.recently_used import RecentlyUsed
from tfgc._framework import concrete_functions
from tfgc._framework.internals import compiler_ir, context, hlo_pb2
from tfgc._framework.versions import attribute

# Of functions that were compiled: layers of one kind have equal ones, and planning reads them more than once.
_temporary_bytes: RecentlyUsed[Any, int] = RecentlyUsed(256)


def stable_hlo(function: Any, specs: Sequence[tf.TensorSpec]) -> bytes:
    """The module of a concrete function of these arguments; a ValueError if XLA has no kernel for an operation."""
    flat: Any = list(specs)  # The public way wants tensors, not shapes.
    return compiler_ir.from_concrete_function(function, flat)(stage="stablehlo_serialized")


def temporary_bytes(op: tf.Operation) -> int:
    """Bytes that XLA takes while an operation runs a function that it compiles, beside its arguments and results.

    They are XLA's own assignment of buffers for this device; nothing is run. For all other operations it is 0, as for
    unknown sizes and for functions that read variables, whose values XLA would want.
    """
    function = concrete_functions.called(op)
    known = all(t.shape.is_fully_defined() and t.dtype != tf.resource for t in op.inputs)
    if function is None or not known or not op.node_def.attr["_XlaMustCompile"].b:
        return 0
    device = (tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU"))[0].name
    arguments = [tf.TensorSpec(t.shape, t.dtype) for t in op.inputs]
    key = device, tuple(arguments), concrete_functions.content(function)
    found = _temporary_bytes.get(key)
    if found is None:
        _temporary_bytes[key] = found = _assigned(device, function, arguments)
    return found


def temporary_bytes_of(function: Any, arguments: Sequence[tf.TensorSpec]) -> int:
    """Bytes that XLA lays out for a concrete function of these arguments, beside them, its results and variables.

    Raises:
        tf.errors.OpError: If it cannot be compiled without their values, or at all.
    """
    device = (tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU"))[0].name
    return _laid_out(device, function, arguments, function.captured_inputs)


def _assigned(device: str, function: Any, arguments: Sequence[tf.TensorSpec]) -> int:
    try:
        return _laid_out(device, function, arguments, [])
    except tf.errors.OpError:  # A size may be the value of an argument: it is known when the step runs.
        return 0


def _laid_out(device: str, function: Any, arguments: Sequence[tf.TensorSpec], captured: Sequence[tf.Tensor]) -> int:
    compile_for = attribute(context.context(), "get_compiler_ir")
    answer = compile_for(device, None, function.name, arguments, captured, "optimized_hlo_proto_serialized")
    module = attribute(hlo_pb2, "HloProto").FromString(answer)
    buffers = module.buffer_assignment.buffer_allocations
    return sum(b.size for b in buffers if not (b.is_entry_computation_parameter or b.maybe_live_out or b.is_constant))
