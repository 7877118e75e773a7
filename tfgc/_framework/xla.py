"""What XLA's compiler gets, and what it answers; and what waits for what in a function that it compiles."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfgc._framework.internals import context, hlo_pb2
from tfgc._framework.versions import attribute


def stable_hlo(function: Any, specs: Sequence[tf.TensorSpec]) -> bytes:
    """The module of a concrete function of these arguments; a ValueError if XLA has no kernel for an operation."""
    return _exported(function, specs, "stablehlo_serialized")


def temporary_bytes_of(function: Any, specs: Sequence[tf.TensorSpec]) -> int:
    """Bytes that XLA lays out for a concrete function of these arguments, beside them, its results and variables.

    Raises:
        tf.errors.OpError: If it cannot be compiled without their values, or at all.
    """
    answer = _exported(function, specs, "optimized_hlo_proto_serialized")
    buffers = attribute(hlo_pb2, "HloProto").FromString(answer).buffer_assignment.buffer_allocations
    return sum(b.size for b in buffers if not (b.is_entry_computation_parameter or b.maybe_live_out or b.is_constant))


def _exported(function: Any, specs: Sequence[tf.TensorSpec], stage: str) -> bytes:
    # The public method wants tensors in place of shapes, and draws a random number to learn where it would run.
    device = (tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU"))[0].name
    export = attribute(context.context(), "get_compiler_ir")
    return export(device, None, function.name, list(specs), function.captured_inputs, stage)


def waiting(late: Sequence[tf.Tensor]) -> Callable[[tf.Tensor], tf.Tensor]:
    """A function that makes a tensor wait until others, of floating numbers, are there: XLA drops control edges."""
    sums = [tf.cast(tf.abs(tf.reduce_sum(x)), tf.float32) for x in late if x.dtype.is_floating or x.dtype.is_complex]
    if not sums:
        return lambda x: x
    total = tf.add_n(sums)
    # XLA cannot know that this is zero, and unlike 0 * upstream it stays zero when a gradient overflows.
    never = tf.math.is_nan(total) & tf.math.is_inf(total)

    def wait(x: tf.Tensor) -> tf.Tensor:
        if x.dtype.is_bool:
            return x | never
        return x + tf.cast(never, x.dtype) if x.dtype.is_floating or x.dtype.is_integer else x

    return wait
