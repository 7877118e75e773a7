"""Where operations of a traced step stand: in the forward or the backward pass, behind which others, and in which call.

An operation of the forward pass belongs to the innermost call in whose interval it was made. One of the backward pass
bears the name of the operation or the scope of the call that it is the gradient of. What a custom gradient makes
belongs to the call that asked for it. All others (a sum of gradients) belong to the innermost call around all that they
read.
"""

from collections.abc import Iterable, Mapping, Set

import tensorflow as tf

from tfgc._calls.recording import Trace, WeightUpdate
from tfgc._calls.step import Call

_GRADIENTS = "gradient_tape"


def turns(
    operations: list[tf.Operation], late: set[tf.Operation], updates: list[WeightUpdate]
) -> dict[tf.Operation, int]:
    """When each operation runs: even turns are of forward passes, odd ones of backward passes."""
    found: dict[tf.Operation, int] = {}
    updated: dict[int, list[tf.Operation]] = {}
    left = updates[::-1]
    # The executor starts what waits for nothing: of two forward passes in one step, the second one begins with the
    # first, unless it reads weights that were updated in between.
    for i, op in enumerate(operations):
        while left and left[-1].behind <= i:
            update = left.pop()
            updated.setdefault(update.variable, []).append(update.gradient.op)
        before = [*_before(op), *(other for t in op.inputs for other in updated.get(id(t), ()))]
        own = int(op in late)
        known = (found.get(other, 0) for other in before)
        found[op] = max((turn + (turn % 2 != own) for turn in known), default=own)
    return found


def waits(
    operations: list[tf.Operation], late: set[tf.Operation], numbers: dict[tf.Operation, int]
) -> dict[tf.Operation, tuple[int, ...]]:
    """The late operations that each waits for, those past ones that are left out."""
    found: dict[tf.Operation, tuple[int, ...]] = {}
    for op in operations:
        before = (other for other in _before(op) if other in late)
        reached = ((numbers[other],) if other in numbers else found.get(other, ()) for other in before)
        found[op] = tuple(dict.fromkeys(i for numbers in reached for i in numbers))
    return found


def _before(op: tf.Operation) -> Iterable[tf.Operation]:
    yield from (t.op for t in op.inputs)
    yield from op.control_inputs


def late(operations: list[tf.Operation], gradients: list[tuple[int, int]]) -> set[tf.Operation]:
    """Operations that a tape made, or that depend on one made before."""
    made = {i for first, behind in gradients for i in range(first, behind)}
    found: set[tf.Operation] = set()
    # The gradient of a loop gives the loop of the forward pass more inputs; that does not make it late.
    for i, op in enumerate(operations):
        if i in made or any(other in found for other in _before(op)):
            found.add(op)
    return found


def under_xla(runs: list[tf.Operation], gradients: Set[tf.Operation]) -> dict[tf.Operation, float]:
    """The place of each operation in XLA's order: gradients of weights come right behind what they are made of."""
    places: dict[tf.Operation, float] = {}
    for i, op in enumerate(runs):
        # XLA's scheduler prefers what frees memory: such a gradient is small, and often the last to read an activation.
        behind = max((places[t.op] for t in op.inputs if t.op in places), default=0.0)
        places[op] = behind + 0.5 if op in gradients else float(i)
    return places


def owners(operations: Iterable[tf.Operation], late: set[tf.Operation], trace: Trace) -> dict[tf.Operation, Call]:
    """The call that each operation of a traced step belongs to."""
    intervals: dict[int, Call] = {}
    scopes: dict[str, Call] = {}
    for call in trace.root.within():  # inner calls come later and overwrite
        intervals.update(dict.fromkeys(range(call.first, call.last), call))
        if call.scope:
            scopes.setdefault(call.scope, call)
    custom = {i: call for first, behind, call in trace.custom_gradients for i in range(first, behind)}
    found: dict[tf.Operation, Call] = {}
    named = dict(scopes)
    last = trace.root
    for i, op in enumerate(operations):
        if op not in late:
            found[op] = named[op.name] = intervals.get(i, trace.root)
        elif i in custom:
            found[op] = last = custom[i]
        elif _GRADIENTS in op.name:
            found[op] = last = _named(op.name, named) or trace.root
        else:
            found[op] = last = _reader(op, late, found) or last
    return found


def _named(name: str, calls: Mapping[str, Call]) -> Call | None:
    """The call of the longest beginning of a gradient's name that is the name of an operation or a scope."""
    parts = name.split("/")
    innermost = len(parts) - parts[::-1].index(_GRADIENTS) if _GRADIENTS in parts else 0
    parts = parts[innermost:]
    beginnings = ("/".join(parts[:n]) for n in range(len(parts), 0, -1))
    return next((calls[beginning] for beginning in beginnings if beginning in calls), None)


def _reader(op: tf.Operation, late: set[tf.Operation], found: Mapping[tf.Operation, Call]) -> Call | None:
    """The call of what an operation without a name reads: the newest of the forward pass, else all gradients."""
    early = [t.op for t in op.inputs if t.op not in late and t.op.inputs]
    if early:
        return found[early[-1]]
    above = [found[t.op] for t in op.inputs if t.op in late and t.op in found]
    return _around_all(above) if above else None


def _around_all(calls: list[Call]) -> Call:
    """The innermost call that is, or is around, each of some calls."""
    found = calls[0]
    for call in calls[1:]:
        holders = {call, *call.ancestors()}
        while found not in holders:
            assert found.parent is not None  # the step itself is around every call
            found = found.parent
    return found
