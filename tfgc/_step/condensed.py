"""A step without views and what makes and reads no planned buffer: its peak is the same, and found much sooner.

What is left reads buffers by their owners, and waits directly for what it needed behind those that are left out.
"""

import dataclasses

from tfgc._step.step import VIEWS, Step


def condensed(step: Step) -> Step:
    """The operations of a step that make or read a planned buffer, with all that they need of each other."""
    ops = {}
    behind: dict[int, set[int]] = {}  # of each operation that is left out, those that it needs and that stay
    for i in step.order:
        op = step.ops[i]
        found: set[int] = set()
        for j in {t[0] for t in op.inputs}.union(op.controls):
            if j in ops:
                found.add(j)
            elif j in behind:
                found |= behind[j]
        inputs = step.reads[i]
        if step.makes[i] or (inputs and op.type not in VIEWS):
            controls = tuple(sorted(found.difference(t[0] for t in inputs)))
            ops[i] = dataclasses.replace(op, inputs=inputs, controls=controls)
        else:
            behind[i] = found
    results = tuple(b for b in dict.fromkeys(map(step.buffer, step.results)) if step.is_planned(b))
    return dataclasses.replace(step, ops=ops, order=tuple(ops), results=results)
