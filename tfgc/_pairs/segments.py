"""The two directions of a joint by a rewritten step: backward is a row of functions, one for each segment.

A caller holds what it gives to a function until that returns, so one function for the whole backward pass would free
nothing. A new one begins where the copies of a segment do. What each takes for the last time, its caller gives away.
"""

import functools
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfgc._framework import own_replica, private_api, xla_waits
from tfgc._pairs.reading import Part, Reading
from tfgc._run import emit
from tfgc._step.step import Step, Tensor


class _Function(NamedTuple):
    """One of the functions of backward: names of what it takes, takes for the last time, and makes."""

    takes: list[str]
    last: Collection[str]
    makes: list[str]
    run: Part


class Segments:
    """Functions that run a rewritten step.

    Args:
        reading: The trace, of which the step was made.
        step: The step.
        results: How many of the results are the function's own; gradients follow.

    Attributes:
        stored: Names of what forward makes for backward.
        gives_away: Whether a caller is to let go of what backward takes.
    """

    def __init__(self, reading: Reading, step: Step, results: int) -> None:
        self._reading, self._step = reading, step
        self._results, self._gradients = reading.results[:results], reading.results[results:]
        self._given = {*reading.arguments, *(reading.trace.tensor(name)[0] for name in reading.upstream)}
        self._nodes = {node.name: node for node in emit.definition(reading.trace, step, False).node}
        self._late = set[int]()
        for i in step.order:
            op = step.ops[i]
            own = op.segment[0] == len(step.calls) if op.segment else i >= reading.start
            if i not in self._given and (own or any(t[0] in self._late for t in op.inputs)):
                self._late.add(i)
        read = {t for _, takes, _ in self._rows(self._gradients) for t in takes}
        early = {*read, *self._gradients}
        self._stored = sorted(t for t in early if t[0] not in self._late | self._given)
        self.stored = list(map(self._name, self._stored))
        self._known: dict[tuple[int, ...], list[_Function]] = {}
        self.gives_away = True

    def forward(self, kept: Sequence[str]) -> Part:
        """What makes the results of the arguments, and what is kept, by name: what is `stored`, and more."""
        step, reading = self._step, self._reading
        results = list(map(self._name, self._results))
        effects = [i for i in step.order if i not in self._late and step.ops[i].is_stateful]
        wanted = [*(t[0] for t in self._results), *(reading.trace.tensor(name)[0] for name in kept)]
        nodes = self._behind([*wanted, *effects], self._given | self._late)
        given = {name: reading.spec(reading.trace.tensor(name)) for name in reading.names[: reading.count]}
        return reading.part(self._as_nodes(nodes), [*results, *kept], given, stays=False)

    def backward(self, wanted: tuple[int, ...], values: dict[str, tf.Tensor]) -> list[tf.Tensor]:
        """Some of the gradients, by position, of values by name: arguments, upstream gradients, and what is stored."""
        if wanted not in self._known:
            self._known[wanted] = own_replica.in_own_thread(functools.partial(self._functions, wanted))
        for function in self._known[wanted]:
            given = [values[name] for name in function.takes]
            if private_api.in_xla():  # which drops the edges of a call, and merges what is equal
                given = self._fenced(function.takes, given)
            for name in function.last:
                del values[name]
            made = function.run(given)
            values.update(zip(function.makes, made))
            del given, made
        return [values[self._name(self._gradients[k])] for k in wanted]

    def _functions(self, wanted: tuple[int, ...]) -> list[_Function]:
        gradients = [self._gradients[k] for k in wanted]
        rows = list(self._rows(gradients))
        kept, found = set(map(self._name, gradients)), list[_Function]()
        later = set(gradients)  # what functions behind take, and the gradients
        for nodes, takes, made in reversed(rows):
            makes = sorted(t for t in later if t[0] in made)
            names = list(map(self._name, takes))
            last = {self._name(t) for t in takes if t not in later} - kept
            given = {name: self._spec(t) for name, t in zip(names, takes)}
            run = self._reading.part(self._as_nodes(nodes), list(map(self._name, makes)), given, stays=True)
            found.append(_Function(names, last, list(map(self._name, makes)), run))
            later |= set(takes)
        return found[::-1]

    def _rows(self, gradients: Sequence[Tensor]) -> Iterable[tuple[list[int], list[Tensor], set[int]]]:
        """The operations of each function, what it takes, and its own among the operations."""
        step, segment = self._step, ()
        needed = self._behind([t[0] for t in gradients if t[0] in self._late], self._is_early())
        rows: list[list[int]] = [[]]
        for i in step.order:
            if i in needed:
                own = step.ops[i].segment
                if own and own != segment:
                    segment = own
                    rows.append([])
                rows[-1].append(i)
        for row in filter(None, rows):
            inside = set(row)
            read = {t for i in row for t in step.ops[i].inputs if t[0] not in inside}
            constants = {i for i, _ in read if step.ops[i].type == "Const" and i not in self._given}
            takes = sorted(t for t in read if t[0] not in constants and not self._is_captured(t[0]))
            yield [*sorted(constants), *row], takes, inside

    def _is_captured(self, number: int) -> bool:
        return self._reading.arguments.get(number, -1) >= self._reading.count

    def _is_early(self) -> set[int]:
        return {i for i in self._step.order if i not in self._late}

    def _behind(self, wanted: Iterable[int], cut: Collection[int]) -> set[int]:
        """The operations behind some, without those that are cut off."""
        step, found, waiting = self._step, set[int](), list(wanted)
        while waiting:
            i = waiting.pop()
            if i not in found and i not in cut:
                found.add(i)
                op = step.ops[i]
                waiting += [*(t[0] for t in op.inputs), *op.controls]
                if op.type == "BiasAddGrad":  # with which oneDNN joins them, read or not (`_run.unread`)
                    waiting += self._filters.get(op.inputs[0], ())
        return found

    @functools.cached_property
    def _filters(self) -> dict[Tensor, list[int]]:
        found: dict[Tensor, list[int]] = {}
        for i, op in self._step.ops.items():
            if op.type == "Conv2DBackpropFilter":
                found.setdefault(op.inputs[2], []).append(i)
        return found

    def _as_nodes(self, numbers: Collection[int]) -> list[Any]:
        names = (self._step.ops[i].name for i in sorted(numbers, key=self._step.at.__getitem__))
        return [self._nodes[name] for name in names]

    def _name(self, tensor: Tensor) -> str:
        return self._step.tensor_name(tensor) if tensor[0] in self._step.ops else self._reading.name(tensor)

    def _spec(self, tensor: Tensor) -> Any:
        op = self._step.ops[tensor[0]]
        return self._reading.spec((op.traced if op.segment else tensor[0], tensor[1]))

    def _fenced(self, names: Sequence[str], given: list[tf.Tensor]) -> list[tf.Tensor]:
        """What is given, where all that forward made waits for what gradients made."""
        early = {*self.stored, *self._reading.names}
        wait = xla_waits.waiting([t for name, t in zip(names, given) if name not in early])
        return [wait(t) if name in early else t for name, t in zip(names, given)]
