"""The heavy gradients of a step, its goals: which waits for which."""

from collections import Counter, defaultdict
from collections.abc import Iterable

from tfgc._step.step import Step


def nearest(step: Step, goals: Iterable[int]) -> tuple[dict[int, list[int]], dict[int, int]]:
    """For each goal those that wait for it, and for how many each one waits: the nearest ones above it."""
    goals = set(goals)
    behind: dict[int, list[int]] = defaultdict(list)
    missing: dict[int, int] = {}
    above: dict[int, frozenset[int]] = {}
    for i in _gradients(step):
        op, found = step.ops[i], set[int]()
        for j in (*(t[0] for t in op.inputs), *op.controls):
            found |= {j} if j in goals else above.get(j, frozenset())
        above[i] = frozenset(found)
        if i in goals:
            missing[i] = len(found)
            for j in found:
                behind[j].append(i)
    return behind, missing


def following(step: Step, goals: Iterable[int]) -> dict[int, int]:
    """For each goal how many follow at most, one behind the other, from the large gradients that it reads."""
    goals = set(goals)
    behind: dict[int, int] = Counter()
    gradients = _gradients(step)
    for i in reversed(gradients):
        behind[i] += i in goals
        for j, _ in step.ops[i].inputs:
            behind[j] = max(behind[j], behind[i])
    late = {i for i, op in step.ops.items() if op.segment or op.is_gradient}
    return {i: max((behind[j] for j, _ in step.reads[i] if j in late), default=behind[i]) for i in goals}


def _gradients(step: Step) -> list[int]:
    """The operations of gradient calls, as made."""
    return sorted(i for i, op in step.ops.items() if op.is_gradient and not op.segment)
