"""Which call each operation of a step belongs to.

An operation of the forward pass belongs to the innermost call in whose interval it was made. One of the backward pass
bears the name of the operation or the scope of the call that it is the gradient of. What a custom gradient makes
belongs to the call that asked for it. All others (a sum of gradients) belong to the innermost call around all that they
read.
"""

from collections.abc import Iterable, Mapping

import tensorflow as tf

from tfgc._calls.recording import Trace
from tfgc._calls.step import Call

_GRADIENTS = "gradient_tape"


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
