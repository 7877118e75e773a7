"""A step without the operations that make and read no planned buffer: its peak is the same, and found much sooner.

What they led from is waited for directly.
"""

import dataclasses

from tfgc._step.step import Step


def condensed(step: Step) -> Step:
    """The operations of a step that make or read a planned buffer, with all that they need of each other."""
    ops = {}
    behind: dict[int, frozenset[int]] = {}  # of each operation that is left out, those that it needs and that stay
    for i in step.order:
        op = step.ops[i]
        needs = {t[0] for t in op.inputs} | set(op.controls)
        found = {j for j in needs if j in ops}.union(*(behind[j] for j in needs if j in behind))
        if step.makes[i] or step.reads[i]:
            inputs = tuple(t for t in op.inputs if t[0] in ops)
            ops[i] = dataclasses.replace(
                op, inputs=inputs, controls=tuple(sorted(found.difference(t[0] for t in inputs)))
            )
        else:
            behind[i] = frozenset(found)
    order = tuple(ops)
    results = tuple(t for t in step.results if t[0] in ops)
    return dataclasses.replace(step, ops=ops, order=order, results=results)
