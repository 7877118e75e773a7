"""The graph that is being built: what it captures, which operations it makes, and what waits for what.

TensorFlow has no public way to see or change any of that; like `private_api`, this file is there so that a change in
a new release is a change in one file.
"""

import contextlib
import inspect
import threading

import tensorflow as tf
from tensorflow.python.eager import record
from tensorflow.python.framework import op_callbacks
from tensorflow.python.ops.control_flow_v2_func_graphs import ControlFlowFuncGraph


@contextlib.contextmanager
def captures_watched(found):
    """Add the eager tensors that the graph being built takes over, small ones as constants, to the list `found`."""
    graph = tf.compat.v1.get_default_graph()
    capture = graph.capture

    def seen(tensor, *args, **kwargs):
        if not tf.is_symbolic_tensor(tensor):
            found.append(tensor)
        return capture(tensor, *args, **kwargs)

    with _replaced(graph, "capture", seen):
        yield


@contextlib.contextmanager
def operations_seen(types, see):
    """Call `see` with the first output of each operation of these types that this thread makes in here.

    In a graph those of the graph being built, without those of its branches and loops.
    """
    here = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()

    def seen(op_type, outputs, graph):
        if op_type in types and graph is here:
            see(outputs[0])
        return outputs

    with _called_back(seen):
        yield


@contextlib.contextmanager
def operations_replaced(types, instead):
    """In the graph being built, let `instead(type, dtype)` give a tensor in place of each operation of these types.

    The operation, whose attributes TensorFlow reads, goes to a graph that is never run.
    """
    graph, unused = tf.compat.v1.get_default_graph(), tf.__internal__.FuncGraph("unused")
    create = graph._create_op_internal

    def created(op_type, *args, **kwargs):
        return (unused._create_op_internal if op_type in types else create)(op_type, *args, **kwargs)

    def replaced(op_type, outputs, _):
        drawn = op_type in types and outputs[0].graph is unused
        return [instead(op_type, outputs[0].dtype)] if drawn else outputs

    with _replaced(graph, "_create_op_internal", created), _called_back(replaced):
        yield


_callbacks = threading.local()


@contextlib.contextmanager
def _called_back(callback):
    """Call `callback(type, outputs, graph)`, which returns the outputs, for each operation that this thread makes."""
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


def _call_back(op_type, inputs, attributes, outputs, op_name=None, graph=None):
    for callback in _callbacks.stack:  # TensorFlow keeps callbacks in no order
        outputs = callback(op_type, outputs, graph)
    return outputs


@contextlib.contextmanager
def _replaced(graph, method, function):
    """Let a function stand for a method of one graph."""
    before = getattr(graph, method)
    setattr(graph, method, function)
    try:
        yield
    finally:
        delattr(graph, method)
        if not inspect.ismethod(before):  # put there by a run around this one
            setattr(graph, method, before)


def inside(tensor):
    """The tensor that stands for `tensor` in the graph being built."""
    return tensor if tf.executing_eagerly() else tf.identity(tensor).op.inputs[0]


def captures_so_far():
    """What the graph being built has captured so far, for `captures_redirected`: the graph, and pairs of tensors."""
    graph = tf.compat.v1.get_default_graph()
    return graph, list(getattr(graph, "captures", ()))


@contextlib.contextmanager
def captures_redirected(known):
    """Let what a function closes over be found as `captures_so_far` told it.

    The gradient of `tf.cond` or `tf.while_loop` reaches what the branch or the body captured by the tensors
    that stand for it there, and by no others.
    """
    seen, here = {id(outer): own for outer, own in known[1]}, tf.compat.v1.get_default_graph()
    branching = any(isinstance(graph, ControlFlowFuncGraph) for graph in _enclosing(here))
    if known[0] is here or not branching:
        yield
        return
    capture = here.capture

    def captured(tensor, *args, **kwargs):
        stand_in = capture(seen.get(id(tensor), tensor), *args, **kwargs)
        if id(tensor) in seen:  # as capturing `tensor` itself would tell the tapes
            record.record_operation("captured_value", [stand_in], [tensor], lambda g: [g], lambda t: [t])
        return stand_in

    with _replaced(here, "capture", captured):
        yield


def reaches(known):
    """Return False if the graph being built cannot use the tensors of the branch or body that `captures_so_far` saw.

    Its gradient can, and what is nested in it; the gradient of a copy that TensorFlow made of it cannot.
    """
    if not isinstance(known[0], ControlFlowFuncGraph):
        return True
    around = _enclosing(tf.compat.v1.get_default_graph())
    return any(known[0] in (graph, getattr(graph, "_forward_graph", None)) for graph in around)


def _enclosing(graph):
    """The graph and all around it."""
    while graph is not None:
        yield graph
        graph = getattr(graph, "outer_graph", None)


def wait_for(tensor, others):
    """Let the operation of `tensor`, in the graph being built, wait for those of `others`."""
    operations = [other.op for other in others if other.graph is tensor.graph]
    tensor.op._add_control_inputs(operations)
