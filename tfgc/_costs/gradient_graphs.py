"""What one call keeps and needs, read from the graph of its operations and of their gradients.

An operation is *late* if it depends on an upstream gradient (through data or
control edges) and *early* otherwise. What a late operation reads of the early ones is
what the forward pass keeps. Buffers, not tensors, are counted (`tensor_buffers`). Only static
shapes are read; nothing is allocated.

Known weakness: a kernel's private workspace is not in the graph and counts
as nothing. Operations run in the order in which they were traced.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from tfgc._costs import batch_coupling, flop_counts, tensor_buffers
from tfgc._costs.flop_counts import SHAPE_ONLY
from tfgc._costs.tensor_buffers import Buffers


@dataclasses.dataclass(frozen=True)
class Call:
    """The tensors of one traced call; `gradients` are those of its sources and of its trainable variables."""

    graph: Any
    inputs: list[tf.Tensor]
    variables: list[tf.Tensor]
    outputs: list[tf.Tensor]
    upstream: list[tf.Tensor]
    gradients: list[Any]
    sources: list[tf.Tensor]


@dataclasses.dataclass(frozen=True)
class Footprint:
    """Bytes and work of one call.

    Attributes:
        kept_inputs, kept_outputs: Positions of those that backward reads.
        saved_internal_bytes: Bytes of each other buffer that backward reads.
        forward_trace: Buffer bytes as they come (+) and go (-) in a forward pass that keeps nothing.
        forward_saving_trace: The same in one that keeps what backward reads; what is kept never goes.
        backward_trace: The same in the backward pass, after the upstream gradients and kept buffers.
        aliases: For each output the position of the input that it renames, or None.
        overwrites: Position of an input whose buffer the first output takes over, or None.
        passthrough_inputs: Positions of inputs whose gradient is the upstream gradient itself.
        flops, backward_flops: Floating-point operations.
        coupled: Whether a sample's result depends on others of the batch.
    """

    kept_inputs: tuple[int, ...]
    kept_outputs: tuple[int, ...]
    saved_internal_bytes: tuple[int, ...]
    forward_trace: tuple[int, ...]
    forward_saving_trace: tuple[int, ...]
    backward_trace: tuple[int, ...]
    aliases: tuple[int | None, ...]
    overwrites: int | None
    passthrough_inputs: tuple[int, ...]
    flops: int
    backward_flops: int
    coupled: bool


def footprint(call: Call) -> Footprint:
    """Return the `Footprint` of a traced call."""
    weights = [g for g in call.gradients[len(call.sources) :] if isinstance(g, tf.Tensor)]
    operations, buffers = _classified(call), Buffers(call.graph, weights, call.upstream)
    inputs, outputs, upstream = (
        [buffers.root(t) for t in tensors] for tensors in (call.inputs, call.outputs, call.upstream)
    )
    at_input, at_output = _refs(inputs), _refs(outputs)
    kept = _kept(operations, buffers)
    internal = {ref: n for ref, n in kept.items() if ref not in at_input and ref not in at_output and n}
    workspaces = tuple(tensor_buffers.workspace(op) for op in operations.forward if tensor_buffers.workspace(op))
    to_free = {**internal, **{t.ref(): buffers.bytes(t) for t in upstream}}
    gradients = _refs(buffers.root(t) for t in operations.gradients)
    return Footprint(
        kept_inputs=tuple(i for i, t in enumerate(inputs) if t.ref() in kept),
        kept_outputs=tuple(i for i, t in enumerate(outputs) if t.ref() in kept and t.ref() not in at_input),
        saved_internal_bytes=(*internal.values(), *(workspaces if operations.late else ())),
        forward_trace=(*workspaces, *tensor_buffers.trace(operations.forward, buffers, {}, at_output)),
        forward_saving_trace=(*workspaces, *tensor_buffers.trace(operations.early, buffers, {}, {*at_output, *kept})),
        # Workspaces are there until the end of the backward pass.
        backward_trace=tensor_buffers.trace(operations.late, buffers, to_free, gradients),
        aliases=tuple(_find(inputs, root) for root in outputs),
        overwrites=_taken(operations, buffers, inputs, outputs),
        passthrough_inputs=_passed(call, buffers),
        flops=sum(map(flop_counts.flops, operations.early)),
        backward_flops=sum(map(flop_counts.flops, operations.late)),
        coupled=batch_coupling.couples(operations.forward, call.inputs),
    )


@dataclasses.dataclass(frozen=True)
class _Operations:
    """The operations of a call that a step runs, in the order in which they were traced.

    Attributes:
        early: Those that depend on no upstream gradient.
        late: The others.
        forward: Those among the early ones that an output depends on.
        free: Constants and variables, which cost a step nothing.
        after_upstream: All that depends on an upstream gradient, run or not, and the upstream gradients.
        gradients: The tensors of all gradients.
    """

    early: list[tf.Operation]
    late: list[tf.Operation]
    forward: list[tf.Operation]
    free: set[tf.Operation]
    after_upstream: set[tf.Operation]
    gradients: list[tf.Tensor]


def _classified(call: Call) -> _Operations:
    operations = call.graph.get_operations()
    after_upstream: set[tf.Operation] = set()
    constant: set[tf.Operation] = set()  # TensorFlow folds these.
    upstream = _refs(call.upstream)
    for op in operations:
        if op.type == "Placeholder":
            after_upstream.update([op] if op.outputs[0].ref() in upstream else [])
        elif any(t.op in after_upstream for t in op.inputs) or any(c in after_upstream for c in op.control_inputs):
            after_upstream.add(op)
        elif all(t.op in constant for t in op.inputs):
            constant.add(op)
    free = constant | {t.op for t in call.variables}
    gradients = [t for g in call.gradients if g is not None for t in tf.nest.flatten(g, expand_composites=True)]
    needed, forward = _ancestors([*call.outputs, *gradients]), _ancestors(call.outputs)
    computed = [op for op in operations if op in needed and op not in free and op.type != "Placeholder"]
    early = [op for op in computed if op not in after_upstream]
    return _Operations(
        early=early,
        late=[op for op in computed if op in after_upstream],
        forward=[op for op in early if op in forward],
        free=free,
        after_upstream=after_upstream,
        gradients=gradients,
    )


def _kept(operations: _Operations, buffers: Buffers) -> dict[Any, int]:
    """Bytes of each buffer that the backward pass reads."""
    kept = {}
    for op in operations.late:
        for t in op.inputs if op.type not in SHAPE_ONLY else ():
            root = buffers.root(t)
            made = root.op not in operations.after_upstream and root.op not in operations.free
            # A shape is known to whoever knows the tensor: nothing runs again for it.
            if made and root.op.type not in SHAPE_ONLY:
                kept[root.ref()] = buffers.bytes(root)
    return kept


def _taken(
    operations: _Operations, buffers: Buffers, inputs: Sequence[tf.Tensor], outputs: Sequence[tf.Tensor]
) -> int | None:
    """The input over whose buffer a chain of in-place operations writes the first output."""
    if len(outputs) != 1 or len({t.ref() for t in inputs}) != len(inputs):
        return None
    readers: dict[Any, set[tf.Operation]] = {}
    for op in operations.forward:
        for t in op.inputs if not op.outputs or tensor_buffers.renamed(op.outputs[0]) is None else ():
            readers.setdefault(buffers.root(t).ref(), set()).add(op)
    at, found = outputs[0], None
    while at.op.type in tensor_buffers.IN_PLACE and found is None:
        roots = map(buffers.root, at.op.inputs)
        same = [r for r in roots if buffers.bytes(r) == buffers.bytes(at) and r.dtype == at.dtype]
        same = [r for r in same if r.op not in operations.free and len(readers[r.ref()]) == 1]
        if not same:
            return None
        at = same[0]
        found = _find(inputs, at)
    return found


def _passed(call: Call, buffers: Buffers) -> tuple[int, ...]:
    """Inputs whose gradient is an upstream gradient, handed on as it is."""
    upstream = _refs(call.upstream)
    given = zip(call.sources, call.gradients)
    handed = [s for s, g in given if isinstance(g, tf.Tensor) and buffers.root(g).ref() in upstream]
    positions = (_find(call.inputs, source) for source in handed)
    return tuple(i for i in positions if i is not None)


def _ancestors(tensors: Iterable[tf.Tensor]) -> set[tf.Operation]:
    found: set[tf.Operation] = set()
    stack = [t.op for t in tensors]
    while stack:
        op = stack.pop()
        if op not in found:
            found.add(op)
            stack += [t.op for t in op.inputs]
    return found


def _refs(tensors: Iterable[tf.Tensor]) -> set[Any]:
    return {t.ref() for t in tensors}


def _find(tensors: Sequence[tf.Tensor], wanted: tf.Tensor) -> int | None:
    return next((i for i, t in enumerate(tensors) if t.ref() == wanted.ref()), None)
