"""A user's function traced apart, for the arguments that TensorFlow traces another with, and built again by a plan."""

import functools
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfgc._framework import concrete_functions, isolated_traces, whole_steps
from tfgc._planning.step_plans import Rewritten
from tfgc._run.emit import Built
from tfgc._step.trace import Trace, trace


def traced(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], shapes: Sequence[tf.TensorShape]) -> Trace:
    """A trace of a `tf.function`, in which enabled models run their own code.

    Args:
        function: The `tf.function`.
        args: What it takes; placeholders, too.
        kwargs: The same by name.
        shapes: Of the tensors that a call gives it: what sizes count as that are open where it is traced.
    """
    specs, named = tf.nest.map_structure(_spec, (tuple(args), dict(kwargs)))
    return trace(_Plainly(function), *specs, shapes=shapes, **named)


def results(trace: Trace, plan: Rewritten, given: Sequence[tf.Tensor], *, xla: bool) -> Any:
    """What a traced function returns, built by a plan in the graph at hand; as it is where the plan changes nothing."""
    if plan.unchanged:
        return concrete_functions.call_flat(trace.function, [*given])
    here = [t if tf.is_symbolic_tensor(t) else tf.identity(t) for t in given]  # what the function closes over
    return trace.function.function_type.pack_output(Built(trace, plan.step, xla)(here))


def compiled(trace: Trace, plan: Rewritten) -> Any:
    """A function that XLA compiles of a step by a plan, for what the trace takes; nothing of it runs."""
    specs = [tf.TensorSpec(t.shape, t.dtype) for t in given_to(trace)]

    def run(*tensors: tf.Tensor) -> Any:
        return results(trace, plan, tensors, xla=True)

    function = tf.function(run, jit_compile=True, autograph=False)
    return isolated_traces.in_own_thread(functools.partial(function.get_concrete_function, *specs))


def given_to(trace: Trace) -> list[tf.Tensor]:
    """What stands for the arguments of a function in its trace, without what it captures."""
    return trace.function.graph.inputs[: len(trace.function.graph.inputs) - len(trace.function.captured_inputs)]


def filled(given: Any, rows: int | None) -> tf.TensorShape:
    """A shape with so many rows, where its own are open."""
    shape = tf.TensorShape(given)
    return tf.TensorShape([rows, *shape[1:]]) if shape.rank and shape[0] is None else shape


def shapes_of(arguments: Any, signature: inspect.Signature) -> list[tf.TensorShape]:
    """The shapes of the tensors among the arguments of a call, in the order of a trace's; none of no call."""
    if arguments is None:
        return []
    bound = signature.bind(*arguments[0], **arguments[1])
    flat = tf.nest.flatten((bound.args, bound.kwargs), expand_composites=True)
    tensors = (t for t in flat if isinstance(t, tf.Tensor | np.ndarray | np.generic) and t.dtype != tf.resource)
    return [tf.TensorShape(t.shape) for t in tensors]


class _Plainly:
    """What `trace` asks for a concrete function, in a thread of its own."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def get_concrete_function(self, *args: Any, **kwargs: Any) -> Any:
        with whole_steps.traced_here():
            return self._function.get_concrete_function(*args, **kwargs)


def _spec(value: Any) -> Any:
    """What stands for an argument in the trace: specs of tensors, other values as they are."""
    if isinstance(value, tf.Tensor):
        return tf.TensorSpec(value.shape, value.dtype)
    if isinstance(value, tf.Variable):
        return value
    parts = tf.nest.flatten(value, expand_composites=True)
    return value if parts and parts[0] is value else tf.type_spec_from_value(value)
