"""What XLA takes while it runs a function inside of a step that TensorFlow runs.

Keras has XLA compile convolutions in groups on CPUs, and users mark functions of their own with `jit_compile=True`. XLA
lays out buffers for what such a function computes on its way: for a depthwise convolution in as many groups as
channels two of the size that its weights' gradient would have without groups.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from tfgc._framework import concrete_functions, graph_building, private_api, xla_export
from tfgc._framework.memory_errors import OUT_OF_MEMORY
from tfgc._pure import functional, inner_functions


class Temporary(NamedTuple):
    """Bytes that XLA takes while it runs a function, beside arguments and results: forward, and for its gradients."""

    forward: int = 0
    backward: int = 0


NONE = Temporary()


def measured(note: Callable[[Temporary], None]) -> Callable:
    """For `inner_functions.inlined`: run all bodies in place, and hand what XLA takes for a function to `note`."""

    def apart(body: Callable, args: tuple, kwargs: dict[str, Any], xla: bool) -> Any:
        if xla:
            try:
                note(temporary(lambda: body(*args, **kwargs)))
            except OUT_OF_MEMORY:
                raise
            except Exception:  # The function is the user's code; in place it may work.
                note(NONE)
        return body(*args, **kwargs)

    return apart


def temporary(body: Callable[[], Any]) -> Temporary:
    """What XLA takes for a function of tensors of the graph being built; nothing is run, written or added to a loss."""
    graph = graph_building.scratch_graph("xla")
    stand_in = functools.partial(graph_building.placeholder_of, graph=graph)

    def pure() -> list[tf.Tensor]:
        with functional.Scope(None, stand_in), inner_functions.inlined():
            made = body()
        return [t for t in tf.nest.flatten(made, expand_composites=True) if tf.is_tensor(t)]

    with graph.as_default(), private_api.no_recording():
        made = inner_functions.call_apart(pure, [], xla=True)
        calls = [op for op in graph.get_operations() if concrete_functions.called(op) is not None]
        forward = max(map(xla_export.temporary_bytes, calls), default=0)
        sources = [t for op in calls for t in op.inputs if t.dtype.is_floating]
        tf.gradients([t for t in made if t.dtype.is_floating], sources)
        late = set(graph.get_operations()) - set(calls)
        return Temporary(forward, max(map(xla_export.temporary_bytes, late), default=0))


def added(trace: tuple[int, ...], count: int) -> tuple[int, ...]:
    """Signed bytes that come and go, with `count` more while there are most."""
    if not count:
        return trace
    total, most_yet, at = 0, 0, 0
    for i, change in enumerate(trace):
        total += change
        if total > most_yet:
            most_yet, at = total, i + 1
    return (*trace[:at], count, -count, *trace[at:])
