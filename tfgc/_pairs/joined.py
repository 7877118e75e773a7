"""What belongs in one function.

oneDNN makes one operation of the gradients of a bias and of its filter, and the gradient of a pooling of what it kept
as it pooled: away from that TensorFlow looks for the maxima again, which takes three times as much as they do. XLA has
to know sizes as it compiles, and takes all that a function reads for known if another one reads a size that it makes:
it would compile each step anew.
"""

import dataclasses
from collections.abc import Callable, Collection, Sequence

import tensorflow as tf

from tfgc._framework import memory_counts, private_api
from tfgc._rewrite import waits
from tfgc._rewrite.waits import filters
from tfgc._step.step import Step


def together(step: Step, needed: Collection[int], late: Collection[int], ops: Sequence[tf.Operation]) -> list[int]:
    """The order of some operations, in which what belongs together is close; `ops` are those of the trace."""

    def is_size(number: int) -> bool:  # and may run later: what it reads does not end with it
        op = step.ops[number]
        if op.segment or any(t[0] in late and step.is_planned(step.buffer(t)) for t in op.inputs):
            return False
        return not step.makes[number] and all(t.dtype.is_integer for t in ops[number].outputs)

    order = _beside_filters(step, [i for i in step.order if i in needed])
    return _before_readers(step, order, is_size)


def _beside_filters(step: Step, order: Sequence[int]) -> list[int]:
    """An order with the gradients of biases, and what follows from them, just behind those of filters."""
    at, places, read = {i: k for k, i in enumerate(order)}, dict[int, float](), filters(step)
    for k, i in enumerate(order):
        op = step.ops[i]
        behind = [k, *(places[j] for j in (*(t[0] for t in op.inputs), *op.controls) if j in places)]
        if op.type == "BiasAddGrad":
            behind += sorted(at[j] + 0.5 for j in read.get(op.inputs[0], ()) if j in at)[:1]
        places[i] = max(behind)
    return sorted(order, key=places.__getitem__)


def _before_readers(step: Step, order: Sequence[int], moves: Callable[[int], bool]) -> list[int]:
    """An order with some operations just before what reads them first."""
    places: dict[int, float] = {}
    first: dict[int, float] = {}
    for k, i in reversed(list(enumerate(order))):
        place = first.get(i, k) if moves(i) else k
        places[i] = place - 0.5 if place > k and place % 1 == 0 else place
        for j in (*(t[0] for t in step.ops[i].inputs), *step.ops[i].controls):
            first[j] = min(first.get(j, places[i]), places[i])
    return sorted(order, key=places.__getitem__)


def with_poolings(step: Step, traced: Sequence[tf.Operation]) -> Step:
    """A step that pools again just before the gradient of what another function pools, where oneDNN does both."""
    if private_api.in_xla() or tf.config.list_physical_devices("GPU"):
        return step
    ops, order, segment = dict(step.ops), list[int](), ()
    for i in step.order:
        op = step.ops[i]
        segment = op.segment or segment
        pooling = ops[op.inputs[1][0]] if op.type == "MaxPoolGrad" and op.is_gradient else op
        if pooling is not op and pooling.type == "MaxPool" and segment != (pooling.segment or None):
            first = pooling.traced if pooling.segment else op.inputs[1][0]
            if memory_counts.runs_by_onednn(traced[first].outputs[0].dtype):
                again, segment = max(ops) + 1, segment or (op.call, -1)
                ops[again] = dataclasses.replace(
                    pooling, name=f"again/{op.name}", inputs=op.inputs[:1], call=op.call, traced=first, segment=segment
                )
                ops[i] = dataclasses.replace(op, inputs=(op.inputs[0], (again, 0), *op.inputs[2:]))
                order.append(again)
        order.append(i)
    return dataclasses.replace(step, ops={i: ops[i] for i in order}, order=tuple(order))


def until(step: Step) -> dict[int, int]:
    """The position in the order up to which each operation and what follows belong in one function."""
    last, beside = waits.joined(step), filters(step)
    for i, op in step.ops.items():
        for j in beside.get(op.inputs[0], ()) if op.type == "BiasAddGrad" else ():
            last[j] = max(last[j], step.at[i])
        if op.type == "MaxPoolGrad" and op.is_gradient:
            last[op.inputs[1][0]] = max(last[op.inputs[1][0]], step.at[i])
    return last
