"""The sum of live buffers of a step, operation by operation: its simulated peak.

What an allocator adds (chunks, scratch of kernels) is 8 to 20 % on top, and is measured, not modelled.
"""

from collections import defaultdict

from tfgc._step.step import Step

# Elementwise kernels write their result into an input that ends with them, if it has the same size.
IN_PLACE = frozenset(
    ["Relu", "AddV2", "Add", "AddN", "Mul", "Sub", "BiasAdd", "RealDiv", "Sigmoid", "Tanh", "Exp", "Neg", "Square",
     "Rsqrt", "Sqrt", "ReluGrad", "SigmoidGrad", "TanhGrad", "Maximum", "Minimum", "SquaredDifference", "Erf",
     "Softmax", "Elu", "EluGrad", "Selu", "SeluGrad", "LeakyRelu", "LeakyReluGrad", "Relu6", "Relu6Grad", "Pow", "Log",
     "Log1p", "Select", "SelectV2", "Softplus", "Abs", "Reciprocal", "Expm1"]
)  # fmt: skip


def timeline(step: Step) -> list[int]:
    """Bytes of the planned buffers that are alive while each operation runs, in order."""
    kept = {step.buffer(tensor) for tensor in step.results}
    last = {buffer: readers[-1] for buffer, readers in step.readers.items() if buffer not in kept}
    ending = defaultdict(list)
    for buffer, reader in last.items():
        ending[reader].append(buffer)
    alive: set[tuple[int, int]] = set()
    now, found = 0, []
    for number in step.order:
        ends = [buffer for buffer in ending[number] if buffer in alive]
        makes = step.makes[number]
        for buffer in makes:
            size = step.size(buffer)
            if step.ops[number].type in IN_PLACE:
                taken = next((other for other in ends if step.size(other) >= size), None)
                if taken is not None:
                    ends.remove(taken)
                    alive.discard(taken)
                    now -= step.size(taken)
            alive.add(buffer)
            now += size
        found.append(now)
        for buffer in (*ends, *(b for b in makes if b not in last and b not in kept)):
            if buffer in alive:
                alive.discard(buffer)
                now -= step.size(buffer)
    return found


def peak(step: Step) -> int:
    """The most bytes that are alive at once."""
    return max(timeline(step), default=0)
