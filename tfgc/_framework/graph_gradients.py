"""Give tensors other gradients; in a graph for as long as the graph lives.

`tf.custom_gradient` registers its Python by a name in a list that nothing is ever taken off, and the Python holds
tensors: TensorFlow would keep the graph of each step that was ever traced. Here the graph holds the Python, and
what is registered only finds it.
"""

import functools
import itertools
import sys
import weakref
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import tensorflow as tf

from tfgc._errors import UnsupportedModelError
from tfgc._framework import internals, versions
from tfgc._framework.graph_optimizer import KEPT
from tfgc._framework.internals import gradients_util, imperative_grad, record

_HELD = "tfgc_gradients"  # the attribute of a graph that holds what is attached in it, and goes with it
_names = map("tfgc-replay-{}".format, itertools.count())
_found: weakref.WeakValueDictionary[str, Callable] = weakref.WeakValueDictionary()


def attached(
    results: Sequence[tf.Tensor], arguments: Sequence[tf.Tensor], backward: Callable, asked: set[int]
) -> list[tf.Tensor]:
    """Copies of `results` whose gradients flow to `arguments` alone, as `backward` makes the latter of the former.

    `asked` gets the positions of the results that a tape has gradients of, before it calls `backward`, which gets zeros
    for the others; `backward` empties it. One result needs no such note.
    """
    if tf.executing_eagerly():
        # A `tf.custom_gradient` would hold the results as long as the tape lives.
        with record.stop_recording():
            made = [tf.identity(x) for x in results]
        _record(made, arguments, backward)
        return _noted(made, asked)
    graph, name, count = tf.compat.v1.get_default_graph(), next(_names), len(results)

    def held(*upstream: Any) -> list[Any]:
        """The gradients of results and arguments, given those of copies of both."""
        return [None] * count + list(backward(*upstream[:count]))

    setattr(graph, _HELD, [*getattr(graph, _HELD, ()), held])
    _found[name] = held
    tf.RegisterGradient(name)(functools.partial(_gradients, name))
    # TensorFlow, which differentiates functions by their operations, asks for the gradient by its name, a tape for what
    # is recorded.
    with record.stop_recording(), graph.gradient_override_map({"IdentityN": name}):
        # A SavedModel takes no gradients of what is no number: variables get theirs through reads.
        copies = tf.identity_n([*results, *(_read(t) if t.dtype == tf.resource else t for t in arguments)])
        # Grappler drops the edge from a read of a variable to a later write where a path goes through this operation,
        # and then the operation itself, so that the write may come first.
        _keep(copies[0].op)
    # The copies of arguments are left out: a tape makes zeros for each output that nothing reads.
    _record(copies[:count], arguments, backward)
    return _noted(copies[:count], asked)


def asked_sources() -> set[int] | None:
    """The ids of the tensors and handles that a tape is asked for gradients of; None where that is not known."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is _OF_GRAPHS:
            return None
        if frame.f_code is _OF_TAPES:
            sources: Any = frame.f_locals["sources"]
            return {id(source) for source in sources}
        frame = frame.f_back
    return None


_OF_TAPES = versions.attribute(imperative_grad, "imperative_grad").__code__
_OF_GRAPHS = versions.attribute(gradients_util, "_GradientsHelper").__code__


def _noted(results: list[tf.Tensor], asked: set[int]) -> list[tf.Tensor]:
    """Copies of results that note which of them gradients come from."""
    if len(results) == 1:
        return results
    with record.stop_recording():
        made = [tf.identity(x) if tf.executing_eagerly() else _alone(x) for x in results]
    for i, (result, copy) in enumerate(zip(results, made)):
        _record([copy], [result], lambda upstream, i=i: [asked.add(i) or upstream])
    return made


def _record(results: list[tf.Tensor], arguments: Sequence[tf.Tensor], backward: Callable) -> None:
    """Let tapes know where the gradients of results come from."""
    record.record_operation("tfgc_replay", results, list(arguments), lambda *upstream: list(backward(*upstream)))


def _alone(output: tf.Tensor) -> tf.Tensor:
    """An output as the only one of an operation."""
    # Where a maximum of an elementwise monotonic function is computed, Grappler swaps the two, and makes the first
    # output of an operation their input, whichever it was (`OptimizeMaxOrMinOfMonotonicStage`, in TensorFlow 2.19 to
    # 2.21).
    copy = tf.identity(output)
    _keep(copy.op)
    return copy


def _read(handle: tf.Tensor) -> tf.Tensor:
    """The value of a variable."""
    (value,) = internals.resource_variable_ops.get_eager_safe_handle_data(handle).shape_and_type
    return tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.as_dtype(value.dtype))


def _keep(op: tf.Operation) -> None:
    """Let Grappler leave an operation where it is."""
    versions.attribute(op, "_set_attr")(KEPT, tf.compat.v1.AttrValue(b=True))


def _gradients(name: str, op: tf.Operation, *upstream: Any) -> list[Any]:
    held = _found.get(name)
    if held is None:
        raise UnsupportedModelError(
            f"operation {op.name!r} is a copy of one whose graph is gone, and with it what was to be recomputed: keep "
            "the tf.function that was traced first as long as its copies are differentiated"
        )
    return held(*upstream)
