"""The operations that this thread makes: noted, seen, and replaced by others."""

import contextlib
import threading
from collections.abc import Callable, Collection, Iterator
from typing import Any

import tensorflow as tf

from tfgc._framework import private_api
from tfgc._framework.graph_building import patched, scratch_graph
from tfgc._framework.internals import op_callbacks
from tfgc._framework.versions import attribute


@contextlib.contextmanager
def noted() -> Iterator[list[tf.Operation]]:
    """Give a list that gets, at the end, the operations that are made in here in the graph being built."""
    graph, made = tf.compat.v1.get_default_graph(), []
    start = len(graph.get_operations())
    yield made
    made += graph.get_operations()[start:]


@contextlib.contextmanager
def operations_replaced(
    types: Collection[str], instead: Callable[[str, list[tf.Tensor], tf.DType], tf.Tensor]
) -> Iterator[None]:
    """Let `instead(type, inputs, dtype)` give a tensor in place of each operation of these types.

    In a graph those of the graph being built, as in `operations_seen`. The operation, whose attributes TensorFlow
    reads, goes to a graph that is never run. What `instead` makes is not replaced.
    """
    if tf.executing_eagerly():

        def replaced(op_type: str, inputs: Any, outputs: list[tf.Tensor], graph: Any) -> list[tf.Tensor]:
            if op_type not in types or graph is not None:
                return outputs
            return [instead(op_type, list(inputs), outputs[0].dtype)]

        with _called_back(replaced):
            yield
        return

    def created(op_type: str, inputs: Any, *args: Any, **kwargs: Any) -> tf.Operation:
        if op_type not in types or vars(_callbacks).get("running"):
            return create(op_type, inputs, *args, **kwargs)
        op = create_unused(op_type, inputs, *args, **kwargs)
        _callbacks.running = True
        try:
            # Before other callbacks, `tf.debugging.enable_check_numerics`, read its output in the graph being built.
            op.outputs[0] = instead(op_type, list(inputs), op.outputs[0].dtype)
        finally:
            _callbacks.running = False
        return op

    here, unused = tf.compat.v1.get_default_graph(), scratch_graph("unused")
    create, create_unused = (attribute(g, "_create_op_internal") for g in (here, unused))
    with patched(here, "_create_op_internal", created):
        yield


@contextlib.contextmanager
def outside_clusters(is_one: Callable[[str], bool]) -> Iterator[None]:
    """Let TensorFlow's automatic clusters for XLA leave out the operations of these types that are made in here."""
    if tf.executing_eagerly() or private_api.in_xla():
        yield
        return
    with noted() as made:
        yield
    for op in made:
        if is_one(op.type):
            attribute(op, "_set_attr")("_XlaCompile", tf.compat.v1.AttrValue(b=False))


_callbacks = threading.local()


@contextlib.contextmanager
def _called_back(callback: Callable) -> Iterator[None]:
    """Call `callback(type, inputs, outputs, graph)`, which returns the outputs, for each operation of this thread."""
    stack = vars(_callbacks).setdefault("stack", [])
    if not stack:
        op_callbacks.add_op_callback(_call_back)
    stack.append(callback)
    try:
        yield
    finally:
        stack.pop()
        if not stack:
            op_callbacks.remove_op_callback(_call_back)


def _call_back(
    op_type: str | bytes, inputs: Any, attributes: Any, given: Any, op_name: Any = None, graph: Any = None
) -> list[tf.Tensor]:
    kind, outputs = op_type.decode() if isinstance(op_type, bytes) else op_type, given
    if vars(_callbacks).get("running"):
        return outputs
    _callbacks.running = True
    try:
        for callback in _callbacks.stack:  # TensorFlow keeps callbacks in no order
            outputs = callback(kind, inputs, outputs, graph)
    finally:
        _callbacks.running = False
    if graph is None:  # An eager call returns the list that it gave.
        given[:] = outputs
    return outputs
