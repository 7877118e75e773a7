"""What XLA's compiler gets, and what it answers: a function as StableHLO, and the memory of one that it compiles."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfgc._framework.internals import compiler_ir, context, hlo_pb2
from tfgc._framework.versions import attribute


def stable_hlo(function: Any, specs: Sequence[tf.TensorSpec]) -> bytes:
    """The module of a concrete function of these arguments; a ValueError if XLA has no kernel for an operation."""
    flat: Any = list(specs)  # The public way wants tensors, not shapes.
    return compiler_ir.from_concrete_function(function, flat)(stage="stablehlo_serialized")


def temporary_bytes_of(function: Any, arguments: Sequence[tf.TensorSpec]) -> int:
    """Bytes that XLA lays out for a concrete function of these arguments, beside them, its results and variables.

    Raises:
        tf.errors.OpError: If it cannot be compiled without their values, or at all.
    """
    device = (tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU"))[0].name
    compile_for = attribute(context.context(), "get_compiler_ir")
    captured, wanted = function.captured_inputs, "optimized_hlo_proto_serialized"
    answer = compile_for(device, None, function.name, arguments, captured, wanted)
    module = attribute(hlo_pb2, "HloProto").FromString(answer)
    buffers = module.buffer_assignment.buffer_allocations
    return sum(b.size for b in buffers if not (b.is_entry_computation_parameter or b.maybe_live_out or b.is_constant))
