"""A traced training step as plain numbers: operations, the buffers that they read and make, and whose they are.

Operations are numbered in the order in which they start, those apart that a step does not run: constants, weights, and
what nothing needs. Buffers are those of `tfgc._costs.tensor_buffers`.
"""

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf

from tfgc._calls import fused_step, places, weight_updates
from tfgc._calls.recording import Trace
from tfgc._calls.step import Call, Operation, Step
from tfgc._costs import grappler, kernel_memory, tensor_buffers, xla_products
from tfgc._costs.grappler import SMALL
from tfgc._costs.tensor_buffers import Buffers
from tfgc._costs.update_bytes import NO_UPDATE, Update
from tfgc._costs.xla_fusion import Fusion
from tfgc._framework import operation_order
from tfgc._pure import obstacles, packed_masks, taken_results
from tfgc._step import flop_counts
from tfgc._step.flop_counts import SHAPE_ONLY

_FREE = frozenset(["ReadVariableOp", "VarHandleOp", "VariableShape", "NoOp"])


def read(trace: Trace, *, xla: bool = False, update: Update = NO_UPDATE) -> Step:
    """Read a traced step, as TensorFlow runs it or as XLA compiles it; `update` is that of its weights."""
    operations = trace.graph.get_operations()
    late = places.late(operations, trace.gradients)
    # Layers of text, and masks, forget how many samples there are.
    rows = next((tensor.shape[0] for tensor in trace.batch if tensor.shape.rank), None)
    buffers = Buffers(trace.graph, [], [], rows)
    turn = places.turns(operations, late, trace.updates)
    constant = grappler.folded(operations, buffers)
    running = _running(trace, operations, constant)
    runs = [op for op in running if _is_large(op, buffers)] or running  # A small step has no large ones.
    order = places.under_xla(runs, {buffers.root(t).op for t in trace.wanted}) if xla else {}
    runs.sort(key=lambda op: (turn[op], order.get(op, 0)))
    numbers = {op: i for i, op in enumerate(runs)}
    waits = places.waits(operations, late, numbers)
    owner = places.owners(operations, late, trace)
    free = constant | {op for op in operations if op.type in _FREE or (not op.inputs and op not in numbers)}
    fusion = fused_step.fusion(trace, runs, late, free, owner, buffers) if xla else None
    numbering = _Numbering(buffers, numbers, fusion)
    temporary = fused_step.temporary(trace, runs, late, owner)
    besides = xla_products.while_running(op for op in runs if op in late) if xla else kernel_memory.while_running(runs)
    by_cublas = xla_products.workspaces(runs) if xla and xla_products.is_untiled(runs) else {}
    updating = weight_updates.temporary(trace, update, buffers)
    workspace = kernel_memory.kept_for_gradient if fusion is None else fusion.written_for_gradient
    made = [
        Operation(
            late=op in late,
            reads=numbering.reads(op),
            makes=numbering.makes(op),
            waits=waits[op],
            in_place=op.type in tensor_buffers.IN_PLACE or (not xla and tensor_buffers.is_in_place(op)),
            work=flop_counts.flops(op),
            workspace=workspace(op) if op not in late else 0,
            temporary=max(temporary.get(op, 0) + besides.get(op, 0) + by_cublas.get(op, 0), updating.get(op, 0)),
            owner=owner[op],
        )
        for op in runs
    ]
    if not xla:
        _move_products(made, grappler.moved(filter(late.__contains__, runs), late, free, buffers), numbering)
    early = [op for op in operations if op not in late]
    given = [*trace.batch, *(op.outputs[0] for op in early if op.type == "ReadVariableOp")]
    small = taken_results.small_results(early, given)
    masks = taken_results.masks(early)
    packable, other_masks = ([], masks) if xla else packed_masks.divided(masks)
    products = [*taken_results.dear_products(early, trace.batch, ()), *other_masks]
    packed = {mask: bits for tensor in packable for mask, bits in numbering.packed(tensor)}
    calling = [i for i, op in enumerate(operations) if obstacles.functions_called(op.node_def)]
    batch, weight_gradients = numbering.of(trace.batch), numbering.of(trace.wanted)
    at = {op: i for i, op in enumerate(operations)}
    forward = [(at[op], i) for op, i in numbers.items() if op not in late]
    spans = {call: [i for when, i in forward if call.first <= when < call.last] for call in trace.root.within()}
    return Step(
        root=trace.root,
        operations=made,
        sizes=[0 if buffer in batch else size for buffer, size in enumerate(numbering.sizes)],
        makers=numbering.makers,
        batch=batch,
        weight_gradients=weight_gradients,
        spans=spans,
        obstacles=_obstacles(trace, operations, calling),
        uncopied=_uncopied(trace.root, operations, calling),
        resident=tuple(grappler.sizes(runs, constant, buffers).values())
        if fusion is None
        else (fusion.copied_weights(),),
        products=numbering.of(products if fusion is None else fusion.behind(products)),
        small=numbering.of(small if fusion is None else fusion.behind(small)),
        packed=packed,
        xla=xla,
    )


def _move_products(
    made: list[Operation], products: Iterable[tuple[tf.Operation, tf.Tensor]], numbering: "_Numbering"
) -> None:
    """Let the forward pass make what TensorFlow's optimizer moves there, when it first reads what is multiplied."""
    for op, tensor in products:
        # What is too small to count has no number.
        for factor in numbering.of([tensor]) if grappler.are_made(tensor.op.name) else ():
            first = next((i for i, run in enumerate(made) if factor in run.reads), numbering.makers[factor])
            product = numbering.another(numbering.sizes[factor], first)
            made[first] = dataclasses.replace(made[first], makes=(*made[first].makes, product))
            last = numbering.numbers[op]
            made[last] = dataclasses.replace(made[last], reads=(*made[last].reads, product))


def _is_large(op: tf.Operation, buffers: Buffers) -> bool:
    """Whether an operation reads or makes more than shapes and single numbers: half of all do not."""
    large = any(buffers.bytes(buffers.root(t)) >= SMALL for t in (*op.inputs, *op.outputs))
    return large and op.type not in SHAPE_ONLY


def _running(trace: Trace, operations: list[tf.Operation], constant: set[tf.Operation]) -> list[tf.Operation]:
    """The operations that a step runs: what gradients, results and writes need, without constants and weights."""
    captured = {inner.op for _, inner in trace.graph.captures}
    effects = [op for op in operations if obstacles.writes(op)]
    ends = [*effects, *(t.op for t in (*trace.results, *trace.wanted))]
    needed = operation_order.reached(ends, lambda op: [t.op for t in op.inputs]) | {t.op for t in trace.batch}
    running = needed - constant - captured
    return [op for op in operations if op in running and op.type not in _FREE]


class _Numbering:
    """Numbers of buffers."""

    def __init__(self, buffers: Buffers, numbers: dict[tf.Operation, int], fusion: Fusion | None) -> None:
        self._buffers, self.numbers, self._fusion = buffers, numbers, fusion
        self._known: dict[Any, int] = {}
        self.sizes: list[int] = []
        self.makers: list[int] = []

    def _number(self, tensor: tf.Tensor) -> int:
        key = tensor.ref()
        if key not in self._known:
            self._known[key] = len(self.sizes)
            self.sizes.append(self._buffers.bytes(tensor))
            self.makers.append(self.numbers[tensor.op])
        return self._known[key]

    def another(self, count: int, maker: int) -> int:
        """The number of a new buffer of so many bytes."""
        self.sizes.append(count)
        self.makers.append(maker)
        return len(self.sizes) - 1

    def packed(self, mask: tf.Tensor) -> Iterator[tuple[int, int]]:
        """The number of a mask that a step makes, and that of a new buffer of its bits."""
        for number in self.of([mask]):
            yield number, self.another(packed_masks.packed_bytes(mask, self.sizes[number]), self.makers[number])

    def reads(self, op: tf.Operation) -> tuple[int, ...]:
        """What an operation reads; of what it takes only the shape of, nothing."""
        if op.type in SHAPE_ONLY:
            return ()
        return tuple(self.of(op.inputs if self._fusion is None else self._fusion.read_by(op)))

    def makes(self, op: tf.Operation) -> tuple[int, ...]:
        """The buffers that an operation makes."""
        made = (t for t in op.outputs if tensor_buffers.renamed(t) is None)
        return tuple(self._number(t) for t in made if self._buffers.bytes(t) >= SMALL)

    def of(self, tensors: Iterable[tf.Tensor]) -> frozenset[int]:
        """The buffers of tensors, without those of constants, weights and shapes."""
        roots = (self._buffers.root(t) for t in tensors)
        made = (t for t in roots if t.op in self.numbers and t.op.type not in SHAPE_ONLY)
        return frozenset(self._number(t) for t in made if self._buffers.bytes(t) >= SMALL)


def _obstacles(trace: Trace, operations: list[tf.Operation], calling: list[int]) -> dict[Call, str]:
    """Why calls must not be run twice. Written Keras variables are no obstacle: a replay leaves them alone."""
    functions = obstacles.in_functions(trace.graph)
    suspects = {*calling, *(i for i, op in enumerate(operations) if op.op_def.is_stateful)}
    found = {}
    for call in trace.root.within():
        if not any(call.first <= i < call.last for i in suspects):
            continue
        inside = operations[call.first : call.last]
        inside = [op for op in inside if not (op.inputs and id(op.inputs[0]) in trace.owned)]
        called = (name for op in inside for name in obstacles.functions_called(op.node_def))
        obstacle = obstacles.among(inside, [functions[name] for name in called if name in functions])
        if obstacle is not None:
            found[call] = obstacle
    return found


def _uncopied(root: Call, operations: list[tf.Operation], calling: list[int]) -> frozenset[Call]:
    """The calls with one of the operations that no graph copies: those `calling` functions, or with a generator."""
    these = {*calling, *(i for i, op in enumerate(operations) if obstacles.moves_generator(op))}
    return frozenset(call for call in root.within() if any(call.first <= i < call.last for i in these))
