"""What oneDNN makes one operation of, where one function has both: the gradients of a bias and of its filter."""

from collections.abc import Mapping, Sequence

from tfgc._step.step import Step, Tensor


def filters(step: Step) -> Mapping[Tensor, list[int]]:
    """The gradients of filters, by the upstream gradient that they read."""
    found: dict[Tensor, list[int]] = {}
    for i, op in step.ops.items():
        if op.type == "Conv2DBackpropFilter":
            found.setdefault(op.inputs[2], []).append(i)
    return found


def beside_filters(step: Step, order: Sequence[int]) -> list[int]:
    """An order with the gradients of biases, and what follows from them, just before those of filters."""
    at, places, read = {i: k for k, i in enumerate(order)}, dict[int, float](), filters(step)
    for k, i in enumerate(order):
        op = step.ops[i]
        behind = [k, *(places[j] for j in (*(t[0] for t in op.inputs), *op.controls) if j in places)]
        if op.type == "BiasAddGrad":
            behind += sorted(at[j] - 0.5 for j in read.get(op.inputs[0], ()) if j in at)[:1]
        places[i] = max(behind)
    return sorted(order, key=places.__getitem__)
