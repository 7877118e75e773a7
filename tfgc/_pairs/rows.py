"""Operations in a row of functions that run one after the other on tensors by name, and what belongs in one of them.

oneDNN makes one operation of the gradients of a bias and of its filter, and the gradient of a pooling of what it kept
as it pooled: away from that TensorFlow looks for the maxima again, which takes three times as much as they do. XLA has
to know sizes as it compiles, and takes all that a function reads for known if another one reads a size that it makes:
it would compile each step anew.
"""

import dataclasses
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfgc._framework import memory_counts, private_api, xla
from tfgc._pairs.reading import Part
from tfgc._rewrite import liveness, waits
from tfgc._step.step import Step, Tensor

# Where a function holds what no operation reads any more, and needs more than this part of the step's peak, another one
# begins: kernels take room of their own. A share of it is too little for that.
_CLOSE, _LITTLE = 0.8, 0.02


class Function(NamedTuple):
    """One of the row: names of what it takes, takes for the last time, and makes."""

    takes: list[str]
    last: Collection[str]
    makes: list[str]
    part: Part

    def run(self, values: dict[str, Any], early: Collection[str] | None = None) -> None:
        """Run it on values by name, to which it adds what it makes; under XLA what is `early` waits for the rest."""
        given = [values[name] for name in self.takes]
        if early is not None and private_api.in_xla():  # which drops the edges of a call, and merges what is equal
            wait = xla.waiting([t for name, t in zip(self.takes, given) if name not in early])
            given = [wait(t) if name in early else t for name, t in zip(self.takes, given)]
        for name in self.last:
            del values[name]
        values.update(zip(self.makes, self.part(given)))


def cut(numbers: Sequence[int], starts: Callable[[int, int], bool]) -> Iterable[list[int]]:
    """Numbers in rows; whether a number starts one is asked of the number before it and itself."""
    row: list[int] = []
    for i in numbers:
        if starts(row[-1] if row else -1, i) and row:
            yield row
            row = []
        row.append(i)
    if row:
        yield row


def split(step: Step, parts: Iterable[Sequence[int]]) -> Iterable[list[int]]:
    """Rows in more rows, where one would need more than the step does: what a function takes lives to its end.

    What oneDNN joins stays together.
    """
    at, last, during = step.at, _until(step), liveness.timeline(step)
    kept, most = {step.buffer(t) for t in step.results}, int(_CLOSE * max(during, default=0))
    for row in parts:
        part, taken, until = list[int](), dict[Tensor, int](), -1  # what it takes, and where that is read last
        for i in row:
            is_in_place = step.ops[i].type in liveness.IN_PLACE and bool(step.makes[i])
            reads = {b: at[step.readers[b][-1]] for b in step.reads[i] if b not in kept}
            ended = [b for b, end in (taken | reads).items() if b in taken and end < at[i] + is_in_place]
            dead = sum(map(step.size, ended))
            if part and at[i] > until and dead > _LITTLE * most and during[at[i]] + dead > most:
                yield part
                part, taken = [], {}
            inside = set(part)
            taken |= {b: end for b, end in reads.items() if b[0] not in inside}
            part.append(i)
            until = max(until, last[i])
        yield part


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
    at, places, read = {i: k for k, i in enumerate(order)}, dict[int, float](), waits.filters(step)
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


def _until(step: Step) -> dict[int, int]:
    """The position in the order up to which each operation and what follows belong in one function."""
    last, beside = waits.joined(step), waits.filters(step)
    for i, op in step.ops.items():
        for j in beside.get(op.inputs[0], ()) if op.type == "BiasAddGrad" else ():
            last[j] = max(last[j], step.at[i])
        if op.type == "MaxPoolGrad" and op.is_gradient:
            last[op.inputs[1][0]] = max(last[op.inputs[1][0]], step.at[i])
    return last
