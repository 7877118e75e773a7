"""What one call keeps and needs, read from the graph of its operations and of their gradients.

What a late operation (`call_operations`) reads of the early ones is what the forward pass keeps. Buffers, not tensors,
are counted (`tensor_buffers`). Only static shapes are read; nothing is allocated.

Known weakness: what a kernel allocates besides its outputs is not in the graph, and counts only where `kernel_memory`
knows it, or XLA says it. Operations run in the order in which they were traced.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfgc._core.graph import Cost
from tfgc._costs import grappler, kernel_memory, tensor_buffers, xla_products
from tfgc._costs.call_operations import Call, Operations, ancestors, classified, refs
from tfgc._costs.tensor_buffers import Buffers
from tfgc._costs.xla_functions import NONE, Temporary, added
from tfgc._costs.xla_fusion import FusedOutput, Fusion
from tfgc._pure import taken_results
from tfgc._step import flop_counts
from tfgc._step.flop_counts import SHAPE_ONLY


@dataclasses.dataclass(frozen=True)
class Footprint:
    """Bytes and work of one call; inputs and outputs by their positions."""

    cost: Cost  # as far as the graph shows it, without what names tensors
    kept_inputs: tuple[int, ...]  # that backward reads
    kept_outputs: tuple[int, ...]
    aliases: tuple[int | None, ...]  # for each output the input that it renames, or None
    overwrites: int | None  # the input whose buffer the first output takes over
    passthrough_inputs: tuple[int, ...]  # whose gradient is the upstream gradient itself
    memory_inputs: tuple[int, ...]  # that an operation reads from memory, if XLA compiles the call
    # For each output what XLA computes it from again wherever it is read, or None. Without XLA ().
    fused_outputs: tuple[FusedOutput | None, ...]
    constants: dict[Any, int]  # bytes of each that TensorFlow folds and keeps, by what it is made of; under XLA none
    zero_bytes: int  # that XLA holds during the whole step if an elementwise operation makes the input
    workspace: Temporary  # that XLA takes if cuBLAS computes the products
    merged_weight_bytes: int  # of copies of weights that there are then
    is_untiled: bool  # whether cuBLAS has to, in the whole step
    differentiable_inputs: tuple[int, ...] = ()  # that get a gradient


def footprint(call: Call, *, xla: bool = False, temporary: Temporary = NONE) -> Footprint:
    """Return the `Footprint` of a traced call, as TensorFlow runs it or as XLA compiles it.

    `temporary` is what XLA takes for functions inside.
    """
    weights = [g for g in call.gradients[len(call.sources) :] if isinstance(g, tf.Tensor)]
    operations, buffers = classified(call), Buffers(call.graph, weights, call.upstream)
    inputs, outputs, upstream = (
        [buffers.root(t) for t in tensors] for tensors in (call.inputs, call.outputs, call.upstream)
    )
    at_input, at_output = refs(inputs), refs(outputs)
    fusion = Fusion(operations, buffers, inputs, outputs) if xla else None
    kept = _kept(operations, buffers, fusion)
    internal = {ref: n for ref, n in kept.items() if ref not in at_input and ref not in at_output and n}
    if fusion:
        workspaces = tuple(filter(None, map(fusion.difference_of, operations.early)))
        zero_bytes, constants = sum(map(fusion.zeros_of, operations.forward)), {}
    else:
        workspaces = tuple(filter(None, map(kernel_memory.kept_for_gradient, operations.forward)))
        folded = grappler.folded(call.graph.get_operations(), buffers)
        zero_bytes, constants = 0, grappler.sizes([*operations.early, *operations.late], folded, buffers)
    by_cublas = (max(xla_products.workspaces(ops).values(), default=0) for ops in (operations.early, operations.late))
    may_move = operations.late if not xla and grappler.are_made(call.scope) else ()
    found = grappler.moved(may_move, operations.after_upstream, operations.free, buffers)
    moved = [buffers.bytes(t) for _, t in found]  # what the forward pass makes of products of the backward pass
    besides = (xla_products if xla else kernel_memory).while_running(operations.late)
    to_free = {**internal, **{t.ref(): buffers.bytes(t) for t in upstream}}
    gradients = refs(buffers.root(t) for t in operations.gradients)
    read = [t for op in operations.late for t in op.inputs if t.op not in operations.after_upstream]
    products = [] if xla else taken_results.dear_products(operations.forward, call.inputs, call.outputs)
    made = {t.op for t in products}
    needed = ancestors([*call.outputs, *read], made) if products else set()
    stored = {buffers.root(t).ref(): buffers.root(t) for t in products if t.op in needed}
    selective = [op for op in operations.early if op in needed - made] if stored else []
    runs = tensor_buffers.trace(operations.forward, buffers, {}, at_output, {})
    saving = tensor_buffers.trace(operations.early, buffers, {}, {*at_output, *kept}, {})
    light = tensor_buffers.trace(selective, buffers, {}, {*at_output, *kept}, {})
    back = tensor_buffers.trace(operations.late, buffers, to_free, gradients, besides)
    # A replay makes outputs again, for its backward pass alone.
    remade = {ref: n for ref, n in kept.items() if ref not in at_input and n}
    others = () if xla else ({t.ref(): buffers.bytes(t) for t in upstream}, remade, {})
    held = tuple(tensor_buffers.trace(operations.late, buffers, there, gradients, besides) for there in others)
    products_bytes = sum(map(buffers.bytes, stored.values()))
    cost = Cost(
        saved_tensors=(),
        saved_internal_bytes=(*internal.values(), *moved, *(workspaces if operations.late else ())),
        forward_trace=(*workspaces, *added(runs, temporary.forward)),
        forward_saving_trace=(*workspaces, *added(saving, temporary.forward), *moved),
        # Workspaces and products that were moved are there until the end of the backward pass.
        backward_trace=added(back, temporary.backward),
        held_backward_traces=tuple(added(trace, temporary.backward) for trace in held),
        resident_bytes=fusion.copied_weights() if fusion else 0,
        flops=sum(map(flop_counts.flops, operations.early)),
        backward_flops=sum(map(flop_counts.flops, operations.late)),
        selective_bytes=products_bytes,
        selective_saved_bytes=sum(internal[ref] for ref in stored if ref in internal),
        selective_trace=(*workspaces, *added(light, temporary.forward)) if stored else (),
        selective_flops=sum(map(flop_counts.flops, selective)) if products_bytes else None,
    )
    return Footprint(
        cost=cost,
        kept_inputs=tuple(i for i, t in enumerate(inputs) if t.ref() in kept),
        kept_outputs=tuple(i for i, t in enumerate(outputs) if t.ref() in kept and t.ref() not in at_input),
        aliases=tuple(_find(inputs, root) for root in outputs),
        overwrites=None if xla else _taken(operations, buffers, inputs, outputs),
        passthrough_inputs=_passed(call, buffers),
        memory_inputs=tuple(i for i, t in enumerate(inputs) if fusion and fusion.reads_memory(t)),
        fused_outputs=tuple(fusion.output(t, inputs, [*internal]) for t in outputs) if fusion else (),
        constants=constants,
        zero_bytes=zero_bytes,
        workspace=Temporary(*by_cublas) if fusion else NONE,
        merged_weight_bytes=xla_products.merged_weights(operations, buffers) if fusion else 0,
        is_untiled=bool(fusion) and xla_products.is_untiled(operations.forward),
    )


def shared_bytes(call: Call) -> int:
    """Bytes of the largest buffer that the backward pass could overwrite if no operation of the value read it, too."""
    operations, buffers = classified(call), Buffers(call.graph, [], call.upstream)
    kept, given = _kept(operations, buffers, None), refs(map(buffers.root, call.inputs))
    read = refs(buffers.root(t) for op in operations.early for t in op.inputs)
    taken = refs(buffers.root(t) for op in operations.late if op.type in tensor_buffers.IN_PLACE for t in op.inputs)
    return max((count for ref, count in kept.items() if ref in read & taken and ref not in given), default=0)


def _kept(operations: Operations, buffers: Buffers, fusion: Fusion | None) -> dict[Any, int]:
    """Bytes of each buffer that the backward pass reads."""
    kept = {}
    for op in operations.late:
        read = map(buffers.root, op.inputs) if fusion is None else fusion.read_by(op)
        for root in read if op.type not in SHAPE_ONLY else ():
            made = root.op not in operations.after_upstream and root.op not in operations.free
            # A shape is known to whoever knows the tensor: nothing runs again for it.
            if made and root.op.type not in SHAPE_ONLY:
                kept[root.ref()] = buffers.bytes(root)
    return kept


def _taken(
    operations: Operations, buffers: Buffers, inputs: Sequence[tf.Tensor], outputs: Sequence[tf.Tensor]
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
    upstream = refs(call.upstream)
    given = zip(call.sources, call.gradients)
    handed = [s for s, g in given if isinstance(g, tf.Tensor) and buffers.root(g).ref() in upstream]
    positions = (_find(call.inputs, source) for source in handed)
    return tuple(i for i in positions if i is not None)


def _find(tensors: Sequence[tf.Tensor], wanted: tf.Tensor) -> int | None:
    return next((i for i, t in enumerate(tensors) if t.ref() == wanted.ref()), None)
