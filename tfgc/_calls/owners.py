"""Which call each operation of a step belongs to.

An operation of the forward pass belongs to the innermost call in whose interval it was made. One of the backward pass
bears the name of the operation or the scope of the call that it is the gradient of; one without such a name (a sum of
gradients, what a custom gradient makes) belongs to the innermost call around all that it reads.
"""

from collections.abc import Iterable, Mapping

import tensorflow as tf

from tfgc._calls.tree import Call, around_all

_GRADIENTS = "gradient_tape"


def owners(operations: Iterable[tf.Operation], late: set[tf.Operation], root: Call) -> dict[tf.Operation, Call]:
    """The call that each operation of a step belongs to.

    Args:
        operations: All operations of the graph, in the order in which they were made.
        late: Those of the backward pass.
        root: The step.
    """
    intervals: dict[int, Call] = {}
    scopes: dict[str, Call] = {}
    for call in root.within():  # inner calls come later and overwrite
        intervals.update(dict.fromkeys(range(call.first, call.last), call))
        if call.scope:
            scopes.setdefault(call.scope, call)
    found: dict[tf.Operation, Call] = {}
    named = dict(scopes)
    last = root
    for i, op in enumerate(operations):
        if op not in late:
            found[op] = named[op.name] = intervals.get(i, root)
        elif _GRADIENTS in op.name:
            found[op] = last = _named(op.name, named) or root
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
    return around_all(above) if above else None
