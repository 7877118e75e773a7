"""The two directions of a joint by a rewritten step: backward is a row of functions, one for each segment.

A caller holds what it gives to a function until that returns, so one function for the whole backward pass would free
nothing. A new one begins where the copies of a segment do. What each takes for the last time, its caller gives away.

A copy to the host or back is a function of its own, and what goes there is dropped before the next one runs. In a graph
what comes back waits for the function before it, and no other function waits for the copy.
"""

import functools
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfgc._errors import UnsupportedModelError
from tfgc._framework import host_memory, own_replica, private_api
from tfgc._pairs import rows
from tfgc._pairs.reading import Part, Reading, behind
from tfgc._pairs.rows import Function
from tfgc._rewrite.waits import filters
from tfgc._run import emit
from tfgc._step.step import HOST_COPIES, TO_HOST, Step, Tensor


class Planned(NamedTuple):
    """What a plan makes of a trace.

    Attributes:
        step: The step that runs.
        said: What there is to say of it.
    """

    step: Step
    said: Any = None


class Segments:
    """Functions that run a rewritten step.

    Args:
        reading: The trace, of which the step was made.
        planned: What a plan made of it.
        results: How many of the results are the function's own; gradients follow.

    Attributes:
        stored: Names of what forward makes for backward.
        gives_away: Whether a caller is to let go of what backward takes.
    """

    def __init__(self, reading: Reading, planned: Planned, results: int) -> None:
        self._reading, self._step, self._filters = reading, planned.step, filters(planned.step)
        self._moves = {op.name for op in self._step.ops.values() if op.type in HOST_COPIES}
        self.gives_away = True
        self._results, self._gradients = reading.results[:results], reading.results[results:]
        self._given = {*reading.arguments, *(reading.trace.tensor(name)[0] for name in reading.upstream)}
        self._nodes = {node.name: node for node in emit.definition(reading.trace, self._step, False).node}
        self._late = self._found_late()
        self._early = {*self._step.order} - self._late
        read = {t for row in self._backward_rows(self._gradients) for t in self._takes(row)}
        others = self._late | self._given
        self._of_name = {self._name(t): t for t in sorted({*read, *self._gradients}) if t[0] not in others}
        self.stored = list(self._of_name)
        known = self._step.known_by_shapes  # and stays so under XLA, which has to know shapes
        self._waiting = {*reading.names, *(name for name, t in self._of_name.items() if t[0] not in known)}
        self._known: dict[tuple[int, ...], list[Function]] = {}

    def _found_late(self) -> set[int]:
        """What follows from the upstream gradients."""
        step, reading, found = self._step, self._reading, set[int]()
        for i in step.order:
            op = step.ops[i]
            made = op.traced if op.type == TO_HOST else i
            is_own = made >= reading.start and made not in reading.helpers
            own = op.segment[0] == len(step.calls) if op.segment else is_own
            if i not in self._given and (own or any(t[0] in found for t in op.inputs)):
                found.add(i)
        return found

    def forward(self, kept: Sequence[str]) -> Part:
        """What makes the results of the arguments, and what is kept, by name: what is `stored`, and more."""
        step, reading = self._step, self._reading
        wanted = [*map(self._name, self._results), *kept]
        effects = [i for i in step.order if i in self._early and step.ops[i].is_stateful]
        made = [*self._results, *(self._of_name.get(name) or reading.trace.tensor(name) for name in kept)]
        nodes = behind([*(t[0] for t in made), *effects], (self._given | self._late).__contains__, self._before)
        given = reading.names[: reading.count]
        if not any(self._step.ops[i].type in HOST_COPIES for i in nodes):
            specs = {name: reading.spec(reading.trace.tensor(name)) for name in given}
            return reading.part(self._as_nodes(nodes), wanted, specs, stays=False)
        parts = rows.cut(sorted(nodes, key=step.at.__getitem__), self._moves_between)
        functions = self._functions([*parts], made)

        def run(tensors: Sequence[tf.Tensor]) -> list[Any]:
            if private_api.in_xla():
                raise UnsupportedModelError(host_memory.XLA)
            values: dict[str, Any] = dict(zip(given, tensors))
            for function in functions:
                function.run(values)
            return [values[name] for name in wanted]

        return run

    def backward(self, wanted: tuple[int, ...], values: dict[str, Any]) -> list[tf.Tensor]:
        """Some of the gradients, by position, of values by name: arguments, upstream gradients, and what is stored."""
        if wanted not in self._known:
            parts = self._backward_rows(gradients := [self._gradients[k] for k in wanted])
            parts = parts if private_api.in_xla() else [*rows.split(self._step, parts)]  # XLA runs it all as one
            make = functools.partial(self._functions, parts, gradients)
            self._known[wanted] = own_replica.in_own_thread(make)
        # One runs behind the other: the copies of a segment wait for nothing else.
        before = [values[name] for name in self._reading.upstream if self._moves and not tf.executing_eagerly()]
        for function in self._known[wanted]:
            with tf.control_dependencies(before):
                function.run(values, self._waiting)
            if not (tf.executing_eagerly() or self._moves.intersection(function.makes)):
                before = [values[name] for name in function.makes]
        return [values[self._name(self._gradients[k])] for k in wanted]

    def _functions(self, parts: Sequence[Sequence[int]], wanted: Sequence[Tensor]) -> list[Function]:
        """A row of functions of these operations, which make what is wanted."""
        kept, found = set(map(self._name, wanted)), list[Function]()
        later = set(wanted)  # what functions behind take, and what is wanted
        for row in reversed(parts):
            inside, takes = set(row), self._takes(row)
            makes = list(map(self._name, sorted(t for t in later if t[0] in inside)))
            given = {self._name(t): self._spec(t) for t in takes}
            last = {self._name(t) for t in takes if t not in later} - kept
            if (kind := self._step.ops[row[0]].type) in HOST_COPIES:
                move = host_memory.stored if kind == TO_HOST else host_memory.fetched
                found.append(Function(list(given), last, makes, lambda tensors, move=move: [move(tensors[0])]))
                later |= set(takes)
                continue
            constants = {t[0] for i in row for t in self._step.ops[i].inputs if self._is_constant(t[0])}
            run = self._reading.part(self._as_nodes(inside | constants), makes, given, stays=True)
            found.append(Function(list(given), last, makes, run))
            later |= set(takes)
        return found[::-1]

    def _backward_rows(self, gradients: Sequence[Tensor]) -> list[list[int]]:
        """The operations of each function of backward: of a segment's copies on; a copy from the host is one."""
        ops = self._step.ops
        needed = behind([t[0] for t in gradients if t[0] in self._late], self._early.__contains__, self._before)
        order = rows.together(self._step, needed, self._late, self._reading.trace.ops)
        segment = ()

        def starts(last: int, i: int) -> bool:
            nonlocal segment
            if self._moves_between(last, i):
                return True
            before, segment = segment, ops[i].segment or segment
            return segment != before

        return list(rows.cut(order, starts))

    def _moves_between(self, last: int, number: int) -> bool:
        """Whether one of two operations, if there are two, copies to the host or back."""
        ops = self._step.ops
        return ops[number].type in HOST_COPIES or (last >= 0 and ops[last].type in HOST_COPIES)

    def _takes(self, row: Sequence[int]) -> list[Tensor]:
        """What a function of some operations takes."""
        inside = set(row)
        read = {t for i in row for t in self._step.ops[i].inputs if t[0] not in inside}
        return sorted(t for t in read if not self._is_constant(t[0]) and not self._is_captured(t[0]))

    def _is_constant(self, number: int) -> bool:
        return self._step.ops[number].type == "Const" and number not in self._given

    def _is_captured(self, number: int) -> bool:
        return self._reading.arguments.get(number, -1) >= self._reading.count

    def _before(self, number: int) -> list[int]:
        op = self._step.ops[number]
        joins = self._filters.get(op.inputs[0], ()) if op.type == "BiasAddGrad" else ()  # as oneDNN (`_run.unread`)
        return [*(t[0] for t in op.inputs), *op.controls, *joins]

    def _as_nodes(self, numbers: Collection[int]) -> list[Any]:
        return [self._nodes[self._step.ops[i].name] for i in sorted(numbers, key=self._step.at.__getitem__)]

    def _name(self, tensor: Tensor) -> str:
        return self._step.tensor_name(tensor) if tensor[0] in self._step.ops else self._reading.name(tensor)

    def _spec(self, tensor: Tensor) -> Any:
        while (op := self._step.ops[tensor[0]]).type in HOST_COPIES:
            tensor = op.inputs[0]
        return self._reading.spec((op.traced if op.segment else tensor[0], tensor[1]))
