"""The control edges that hold a step to the peak of its order, and no more of them than that takes.

1. Triggers. Each copy, each forward operation that was moved behind a gradient, and each gradient that follows from no
   other waits for the last large gradient before it in the order: else TensorFlow would merge copies with their
   originals.
2. Room. What allocates behind the first gradient, or the first copy to the host, may run before its turn if there is
   room for it: if what is alive behind some operation of the order and all that is made from there to its own place
   come to no more than the peak. It waits for all up to the last place where that is not so, for those that free
   something, too: with few threads, as a GPU's executor enqueues, gradients of weights run late, and hold what they
   read until then.

What waits like that needs no more than the peak of the order, however many threads run it. Not all does: neither the
forward pass nor `_NEVER_WAITS`, and TensorFlow's graph optimizer drops edges of what it rewrites.
"""

from collections import defaultdict
from collections.abc import Mapping

from tfgc._rewrite.liveness import alive
from tfgc._step.step import TO_HOST, Step, Tensor

# oneDNN's layout pass makes one operation of two (`joined`), whatever waits between them, and ends the process where a
# Conv2D and the BiasAdd behind it both have a control input. So the second one of a pair never waits. Nor does the
# gradient of a filter: with a control input it is not joined with that of the bias, and the two round otherwise.
_NEVER_WAITS = frozenset(["BiasAdd", "BiasAddGrad", "Conv2DBackpropFilter"])


def waits(step: Step) -> dict[int, set[int]]:
    """For each operation the ones that it has to wait for besides those that it needs."""
    found = _triggers(step)
    during, behind = alive(step)
    last = joined(step)
    peak, begun = max(during, default=0), False
    planned = [i for i in step.order if step.makes[i] or step.reads[i]]
    number = {i: k for k, i in enumerate(planned)}  # a bit for each
    above: dict[int, int] = {}  # of what must have run before each operation, and of itself
    made = [0]  # by all of the planned up to each, in turn
    left: list[int] = []  # alive behind each
    past = 0  # how many of them must have run before there is room
    for i in step.order:
        op, before = step.ops[i], 0
        begun = begun or op.type == TO_HOST or (op.is_gradient and not op.segment)
        for j in (*(t[0] for t in op.inputs), *op.controls, *found.get(i, ())):
            before |= above[j]
        above[i] = before
        if i not in number:
            continue
        k, at = number[i], step.at[i]
        made.append(made[k] + _taken(step, i, during[at] - (left[-1] if left else 0), before, number))
        while past < k and (left[past - 1] if past else 0) - made[past] > peak - made[-1]:
            past += 1
        if begun and step.makes[i] and _may_wait(step, i):
            passed = 0
            while missing := ~(before | passed) & ((1 << past) - 1):
                j = planned[missing.bit_length() - 1]
                if last[j] > at:
                    passed |= 1 << number[j]
                else:
                    found.setdefault(i, set()).add(j)
                    before |= above[j]
        above[i] = before | 1 << k
        left.append(behind[at])
    return found


def _taken(step: Step, i: int, more: int, before: int, number: dict[int, int]) -> int:
    """Bytes that an operation allocates: in place of another buffer only if all that read it must have run."""
    makes = sum(map(step.size, step.makes[i]))
    ending = (b for b in step.reads[i] if step.readers[b][-1] == i)
    if more < makes and any(not before >> number[j] & 1 for b in ending for j in step.readers[b][:-1]):
        return makes
    return max(more, 0)


def filters(step: Step) -> Mapping[Tensor, list[int]]:
    """The gradients of filters, by the upstream gradient that they read."""
    found: dict[Tensor, list[int]] = defaultdict(list)
    for i, op in step.ops.items():
        if op.type == "Conv2DBackpropFilter":
            found[op.inputs[2]].append(i)
    return found


def joined(step: Step) -> dict[int, int]:
    """The position in the order of the last operation that may become one with each: nothing before it waits for that.

    What waited for the first one, and is needed by the second one, would wait for itself.
    """
    last, read = dict(step.at), filters(step)
    for i in reversed(step.order):
        op = step.ops[i]
        if op.type in ("BiasAdd", "Conv2D") and step.ops[j := op.inputs[0][0]].type in ("Conv2D", "Pad"):
            last[j] = max(last[j], last[i])
        elif op.type == "BiasAddGrad":
            last[i] = max(last[i], *(last[j] for j in read.get(op.inputs[0], ())), 0)
    return last


def _may_wait(step: Step, i: int) -> bool:
    op = step.ops[i]
    is_padded = op.type == "Conv2D" and any(
        step.ops[j].type == "Pad" and step.ops[j].segment == op.segment for j, _ in op.inputs
    )
    return op.type not in _NEVER_WAITS and not is_padded


def _triggers(step: Step) -> dict[int, set[int]]:
    found: dict[int, set[int]] = {}
    follows: set[int] = set()  # gradients that follow from another
    trigger = None
    for i in step.order:
        op, allocates = step.ops[i], bool(step.makes[i])
        is_gradient = op.is_gradient and not op.segment
        if is_gradient and any(t[0] in follows for t in op.inputs):
            follows.add(i)
        begins = is_gradient and allocates and i not in follows
        if is_gradient and allocates:
            follows.add(i)
        waiting = op.segment or begins or (allocates and not is_gradient)
        if waiting and trigger is not None and _may_wait(step, i):
            found[i] = {trigger}
        if is_gradient and allocates:
            trigger = i
    return found
