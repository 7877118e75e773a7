"""Count the tensors that the update of a weight holds at most, if each operation runs as soon as it can.

TensorFlow's executor starts all that is ready, so that operations at the same distance from the gradient run together.
Of two that read a tensor at the same time none writes its result over it. What is added to a weight makes a new buffer,
since the backward pass may still read the old one. A weight of which rows were updated is copied where it is read.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import tensorflow as tf

from tfgc._costs.tensor_buffers import IN_PLACE, Buffers, renamed

# Operations that hand on what is there anyway.
NO_COPIES = frozenset(["Const", "IdentityN", "Placeholder", "ReadVariableOp"])
_ADDING = frozenset(["AssignAddVariableOp", "AssignSubVariableOp"])


def most_held(
    graph: Any,
    gradients: Sequence[tf.Tensor],
    behind: Collection[tf.Operation],
    handles: Collection[int],
    shape: tuple[int, ...],
) -> float:
    """The most tensors of this shape that there are `behind` gradients of weights, beside those of the gradients.

    `handles` are the ids of what stands for the weights.
    """
    buffers = Buffers(graph, [], [])
    operations = [op for op in graph.get_operations() if op in behind]
    waves: dict[tf.Operation, int] = {}
    reads: dict[Any, Counter[int]] = {}  # of each buffer, how many operations of each wave read it
    for op in operations:
        before = max((waves.get(other, 0) for other in (*op.control_inputs, *(t.op for t in op.inputs))), default=0)
        is_view = bool(op.outputs) and all(renamed(t) is not None for t in op.outputs)
        waves[op] = before if is_view else before + 1
        for ref in set() if is_view else {buffers.root(t).ref() for t in op.inputs}:
            reads.setdefault(ref, Counter())[waves[op]] += 1
    given = [t.ref() for t in gradients if t.shape == shape]
    sizes: dict[Any, float] = dict.fromkeys(given, 1.0)  # beside that of a weight
    begins: dict[Any, int] = dict.fromkeys(given, 0)
    ends: dict[Any, int] = {ref: max(reads.get(ref, (0,))) for ref in given}
    for op in operations:
        if op.type in _ADDING and id(op.inputs[0]) in handles:
            sizes[op], begins[op], ends[op] = 1.0, waves[op], waves[op]
        for made in op.outputs:
            if made.shape != shape or op.type in NO_COPIES or renamed(made) is not None:
                continue
            wave, ref = waves[op], made.ref()
            sizes[ref] = made.dtype.size / gradients[0].dtype.size
            begins[ref], ends[ref] = wave, max(reads.get(ref, (wave,)))
            inputs = [buffers.root(t).ref() for t in op.inputs] if op.type in IN_PLACE else []
            taken = next(
                (r for r in inputs if ends.get(r) == wave and reads[r][wave] == 1 and sizes[r] == sizes[ref]), None
            )
            if taken is not None:
                ends[taken] = wave - 1
    waves_left = range(max(ends.values(), default=0) + 1)
    counts = [sum(size for ref, size in sizes.items() if begins[ref] <= wave <= ends[ref]) for wave in waves_left]
    copied = any(op.type.startswith("ResourceScatter") and id(op.inputs[0]) in handles for op in operations)
    return max(float(copied), max(counts, default=0.0) - len(given))
