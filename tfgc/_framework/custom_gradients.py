"""Give copies of a `tf.custom_gradient` a gradient that is a copy, too.

In a graph TensorFlow marks the results of such a function by an operation that hands on results and arguments, and
registers its Python as the gradient of that operation. The Python closes over tensors of the graph that was traced,
which the graph of a copy does not have. So it runs once in the traced graph, and a copy's gradient, wanted for
gradients of gradients alone, is a copy of what it made.
"""

import functools
import threading
from typing import Any

import tensorflow as tf

from tfgc._framework import graph_building, graph_copies, versions
from tfgc._framework.internals import ops
from tfgc._framework.memory_errors import OUT_OF_MEMORY

# A name that is registered stays so: equal gradients share one. Beyond so many, replays are traced in place.
_names: dict[Any, str] = {}
_MOST_NAMES = 1024
_lock = threading.Lock()


def make_copyable(part: graph_copies.Part, graph: Any) -> bool:
    """Give what a part of `graph` copies gradients that are copies, too.

    False if one cannot be copied, since it depends on more than the function's arguments and results.
    """
    names: dict[str, str] = {}
    for operation in part.customized:
        name = _registered(graph, graph.get_operation_by_name(operation))
        if name is None:
            return False
        names[operation] = name
    part.customize(names)
    return True


def _registered(graph: Any, op: tf.Operation) -> str | None:
    with graph.as_default():
        upstream = [tf.compat.v1.placeholder(t.dtype, t.shape) for t in op.outputs]
        start = len(graph.get_operations())
        try:
            gradients = versions.attribute(ops, "get_gradient_function")(op)(op, *upstream)
        except OUT_OF_MEMORY:
            raise
        except Exception:  # It is the user's code, and may ask for what is there in a training step alone.
            return None
    given = [*op.inputs, *upstream]
    places = list({t.ref(): i for i, t in enumerate(given)}.values())
    if not all(gradient is None or isinstance(gradient, tf.Tensor) for gradient in gradients):  # tf.IndexedSlices
        return None
    part = graph_copies.Part(graph, [given[i] for i in places], gradients, operations=graph.get_operations()[start:])
    if part.customized or not part.is_closed:
        return None
    key = (part.key, tuple(places))
    with _lock:
        if key not in _names and len(_names) < _MOST_NAMES:
            _names[key] = f"tfgc-{len(_names)}"
            tf.RegisterGradient(_names[key])(functools.partial(_copied, part, places))
        return _names.get(key)


def _copied(part: graph_copies.Part, places: list[int], op: tf.Operation, *upstream: Any) -> list[Any]:
    given = [*op.inputs, *(tf.zeros_like(t) if u is None else u for t, u in zip(op.outputs, upstream))]
    return part.copy([graph_building.capture(given[i]) for i in places], "custom_gradient")
