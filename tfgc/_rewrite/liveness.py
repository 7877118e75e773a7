"""The sum of live buffers of a step, operation by operation: its simulated peak.

What an allocator adds (chunks, scratch of kernels) is 8 to 20 % on top, and is measured, not modelled.
"""

from collections import defaultdict
from collections.abc import Collection

from tfgc._step.step import Step, Tensor

# Elementwise kernels write their result into an input that ends with them, if it has the same size.
IN_PLACE = frozenset(
    ["Relu", "AddV2", "Add", "AddN", "Mul", "Sub", "BiasAdd", "RealDiv", "Sigmoid", "Tanh", "Exp", "Neg", "Square",
     "Rsqrt", "Sqrt", "ReluGrad", "SigmoidGrad", "TanhGrad", "Maximum", "Minimum", "SquaredDifference", "Erf",
     "Softmax", "Elu", "EluGrad", "Selu", "SeluGrad", "LeakyRelu", "LeakyReluGrad", "Relu6", "Relu6Grad", "Pow", "Log",
     "Log1p", "Select", "SelectV2", "Softplus", "Abs", "Reciprocal", "Expm1"]
)  # fmt: skip


def timeline(step: Step, counted: Collection[int] | None = None) -> list[int]:
    """Bytes of the planned buffers that are alive while each operation runs, in order.

    Args:
        step: The step.
        counted: The operations whose buffers count; by default all.
    """
    return alive(step, counted)[0]


def alive(step: Step, counted: Collection[int] | None = None) -> tuple[list[int], list[int]]:
    """Bytes of the planned buffers that are alive while each operation runs, as `timeline`, and once it has run."""
    kept = {step.buffer(tensor) for tensor in step.results}
    readers, ops = step.readers, step.ops
    ending: dict[int, list[Tensor]] = defaultdict(list)
    for buffer, reading in readers.items():
        if buffer not in kept:
            ending[reading[-1]].append(buffer)
    now, during, behind = 0, list[int](), list[int]()
    for number in step.order:
        ends, makes = ending.get(number, []), step.makes[number]
        if not ends and not makes:
            during.append(now)
            behind.append(now)
            continue
        later = 0  # of what takes the place of what does not count
        for buffer in makes:
            size = ops[number].sizes[buffer[1]]
            count = size if counted is None or number in counted else 0
            taken = None
            if ends and ops[number].type in IN_PLACE:
                taken = next((other for other in ends if ops[other[0]].sizes[other[1]] >= size), None)
            if taken is not None:
                ends.remove(taken)
                if counted is None or taken[0] in counted:
                    now -= ops[taken[0]].sizes[taken[1]]
                else:
                    later, count = later + count, 0
            now += count
        during.append(now)
        now += later
        for buffer in (*ends, *(b for b in makes if b not in readers and b not in kept)):
            if counted is None or buffer[0] in counted:
                now -= ops[buffer[0]].sizes[buffer[1]]
        behind.append(now)
    return during, behind


def peak(step: Step) -> int:
    """The most bytes that are alive at once."""
    known = vars(step)  # as cached properties are: a step never changes
    if "peak" not in known:
        known["peak"] = max(timeline(step), default=0)
    return known["peak"]
