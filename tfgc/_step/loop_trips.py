"""How often a loop of a graph runs, by the lists of tensors that it walks over, or by a counter in its condition.

In graphs of TensorFlow 2 a loop calls a function for its condition and one for its body, whose arguments are what the
loop reads.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from tfgc._framework import concrete_functions

LOOPS = ("While", "StatelessWhile")


def trips(loop: tf.Operation) -> int:
    """How often a loop runs at most; 1 where nothing says it."""
    lengths = [t.op.inputs[0].shape[0] for t in loop.inputs if t.op.type == "TensorListFromTensor"]
    reserved = [
        _number(t.op.inputs[1]) for t in loop.inputs if t.op.type == "TensorListReserve" and not _grows(loop, t)
    ]
    walked = [n for n in [*lengths, *reserved] if n]  # An empty list says nothing: one that grows begins so.
    return max(walked) if walked else min(_counted(loop), default=1)


def _grows(loop: tf.Operation, given: tf.Tensor) -> bool:
    """Whether a loop writes behind the end of a list that it is given."""
    body = concrete_functions.graph_of(loop, loop.get_attr("body").name)
    made = [] if body is None else [_source(o).op for t, o in zip(loop.inputs, body.outputs) if t is given]
    return any(op.type == "TensorListSetItem" and op.get_attr("resize_if_index_out_of_bounds") for op in made)


def position(tensor: tf.Tensor, function: Any) -> int | None:
    """Which argument of a function a tensor in it is; None for what the function makes."""
    tensor = _source(tensor)
    return next((i for i, argument in enumerate(function.inputs) if argument is tensor), None)


def _counted(loop: tf.Operation) -> Iterator[int]:
    """For each counter that ends a loop how often it lets it run."""
    condition, body = (concrete_functions.graph_of(loop, loop.get_attr(part).name) for part in ("cond", "body"))
    if condition is None or body is None:
        return
    handed_on = (i for i, output in enumerate(body.outputs) if position(output, body) == i)
    fixed = {i: _number(loop.inputs[i]) for i in handed_on}
    waiting = [condition.outputs[0]]
    while waiting:
        op = _source(waiting.pop()).op
        if op.type == "LogicalAnd":
            waiting += op.inputs
        elif op.type in ("Less", "LessEqual"):
            counter, limit = position(op.inputs[0], condition), _constant(op.inputs[1], condition, fixed)
            if counter is None or limit is None:
                continue
            start, step = _number(loop.inputs[counter]), _added(body, counter, fixed)
            if start is not None and step is not None and step > 0:
                yield max(0, math.ceil((limit - start + (op.type == "LessEqual")) / step))


def _source(tensor: tf.Tensor) -> tf.Tensor:
    """What a tensor is, behind identities."""
    while tensor.op.type == "Identity":
        tensor = tensor.op.inputs[0]
    return tensor


def _constant(tensor: tf.Tensor, function: Any, fixed: Mapping[int, Any]) -> Any:
    """The number that a tensor is in all trips, given those of `fixed` arguments; None if it is not known."""
    at = position(tensor, function)
    return _number(_source(tensor)) if at is None else fixed.get(at)


def _added(body: Any, at: int, fixed: Mapping[int, Any]) -> Any:
    """What a body adds to an argument; None if it does anything else with it, or that is not known."""
    op = _source(body.outputs[at]).op
    if op.type not in ("Add", "AddV2"):
        return None
    pairs = (op.inputs, op.inputs[::-1])
    return next((_constant(other, body, fixed) for one, other in pairs if position(one, body) == at), None)


def _number(tensor: tf.Tensor) -> Any:
    """The number of a constant that has one; else None."""
    array = tf.get_static_value(tensor)
    return array.item() if array is not None and array.size == 1 else None
