"""The control edges that hold a step to its order where that frees memory, and only there.

1. Triggers. Each copy, each forward operation that was moved behind a gradient, and each gradient that follows from no
   other waits for the last large gradient before it in the order: else replays would start at once.
2. What allocates on the way to another large gradient waits for what the order has freed by then: for the last readers
   of buffers that ended, and for all leaves (gradients of weights and biases, updates) that read one of them. With few
   threads, as a GPU's executor enqueues, leaves run late, and hold what they read until then.

With both, the executor runs the order as simulated whatever its threads; with the first alone it does so by luck.
"""

from collections import defaultdict, deque

from tfgc._step.step import Step

# oneDNN's layout pass ends the process where a Conv2D and the BiasAdd behind it both have a control input.
_NEVER_WAITS = frozenset(["BiasAdd"])


def waits(step: Step) -> dict[int, set[int]]:
    """For each operation the ones that it has to wait for besides those that it needs."""
    found: dict[int, set[int]] = defaultdict(set)
    on_the_way = _on_the_way(step)
    frees = _freed_at(step)
    freed: deque[tuple[int, int]] = deque()
    follows: set[int] = set()  # gradients that follow from another
    trigger, begun, allocations = None, False, 0
    for i in step.order:
        op, allocates = step.ops[i], bool(step.makes[i])
        is_gradient = op.is_gradient and not op.segment
        if is_gradient and any(t[0] in follows for t in op.inputs):
            follows.add(i)
        begins = is_gradient and allocates and i not in follows
        if is_gradient and allocates:
            follows.add(i)
        begun = begun or is_gradient
        may_wait = op.type not in _NEVER_WAITS
        if may_wait and trigger is not None and (op.segment or begins or (allocates and not is_gradient)):
            found[i].add(trigger)
        if may_wait and begun and allocates and i in on_the_way:
            allocations += 1
            while freed and freed[0][0] < allocations:
                found[i].add(freed.popleft()[1])
        if begun:
            leaves = (j for j in frees[i] if j == i or (_is_late(step, j) and j not in on_the_way))
            freed.extend((allocations, j) for j in leaves)
        if is_gradient and allocates:
            trigger = i
        found[i].discard(i)
    return found


def _is_late(step: Step, number: int) -> bool:
    return bool(step.ops[number].call) or step.ops[number].is_gradient


def _on_the_way(step: Step) -> set[int]:
    """What leads to a gradient or copy that allocates; the other late operations are leaves."""
    found: set[int] = set()
    for i in reversed(step.order):
        op = step.ops[i]
        if (op.segment or op.is_gradient) and (i in found or step.makes[i]):
            found.update(t[0] for t in op.inputs)
    return found


def _freed_at(step: Step) -> dict[int, list[int]]:
    """For the last reader of each buffer that ends there, all of its readers, in order."""
    found: dict[int, dict[int, None]] = defaultdict(dict)
    for readers in step.readers.values():
        found[readers[-1]].update(dict.fromkeys(readers))
    return defaultdict(list, {i: sorted(readers, key=step.at.__getitem__) for i, readers in found.items()})
