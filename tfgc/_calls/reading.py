"""A traced training step as plain numbers: operations, the buffers that they read and make, and whose they are.

Operations are numbered in the order in which they start, those apart that a step does not run: constants, weights, and
what nothing needs. Buffers are those of `tfgc._costs.tensor_buffers`.
"""

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tfgc._calls import constants, owners, xla_bytes
from tfgc._calls.constants import SMALL
from tfgc._calls.recording import Trace
from tfgc._calls.step import Operation, Step
from tfgc._calls.tree import Call
from tfgc._costs import tensor_buffers
from tfgc._costs.tensor_buffers import Buffers
from tfgc._pure import flop_counts, obstacles, selective_results
from tfgc._pure.flop_counts import SHAPE_ONLY

_FREE = frozenset(["ReadVariableOp", "VarHandleOp", "VariableShape", "NoOp"])


def read(trace: Trace) -> Step:
    """Read a traced step."""
    operations = trace.graph.get_operations()
    late = _late(operations, trace.gradients)
    buffers = Buffers(trace.graph, [], [])
    turns = _turns(operations, late, trace.updates)
    constant = constants.constant(operations, buffers)
    running = _running(trace, operations, constant)
    runs = [op for op in running if _is_large(op, buffers)] or running  # A small step has no large ones.
    runs.sort(key=turns.__getitem__)
    numbers = {op: i for i, op in enumerate(runs)}
    numbering = _Numbering(buffers, numbers)
    waits = _waits(operations, late, numbers)
    owner = owners.owners(operations, late, trace.root, trace.custom_gradients)
    temporary = xla_bytes.temporary(trace, runs, late, owner)
    made = [
        Operation(
            late=op in late,
            reads=numbering.reads(op),
            makes=numbering.makes(op),
            waits=waits[op],
            in_place=op.type in tensor_buffers.IN_PLACE,
            work=flop_counts.flops(op),
            workspace=0 if op in late else tensor_buffers.workspace(op),
            temporary=temporary.get(op, 0),
            owner=owner[op],
        )
        for op in runs
    ]
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
        obstacles=_obstacles(trace, operations),
        constants=constants.sizes(runs, constant, buffers),
        products=numbering.of(_products(trace, operations, late)),
    )


def _products(trace: Trace, operations: list[tf.Operation], late: set[tf.Operation]) -> list[tf.Tensor]:
    early = [op for op in operations if op not in late]
    return selective_results.selective_results(early, trace.batch, ())


def _is_large(op: tf.Operation, buffers: Buffers) -> bool:
    """Whether an operation reads or makes more than shapes and single numbers: half of all do not."""
    large = any(buffers.bytes(buffers.root(t)) >= SMALL for t in (*op.inputs, *op.outputs))
    return large and op.type not in SHAPE_ONLY


def _turns(
    operations: list[tf.Operation], late: set[tf.Operation], updates: list[tuple[int, int, tf.Tensor]]
) -> dict[tf.Operation, int]:
    """When each operation runs: even turns are of forward passes, odd ones of backward passes.

    The executor starts what waits for nothing: of two forward passes in one step, the second one begins with the first,
    unless it reads weights that were updated in between.
    """
    turns: dict[tf.Operation, int] = {}
    updated: dict[int, list[tf.Operation]] = {}
    left = updates[::-1]
    for i, op in enumerate(operations):
        while left and left[-1][0] <= i:
            _, variable, gradient = left.pop()
            updated.setdefault(variable, []).append(gradient.op)
        before = [*_before(op), *(other for t in op.inputs for other in updated.get(id(t), ()))]
        own = int(op in late)
        turns[op] = max((turn + (turn % 2 != own) for turn in (turns.get(other, 0) for other in before)), default=own)
    return turns


def _waits(
    operations: list[tf.Operation], late: set[tf.Operation], numbers: dict[tf.Operation, int]
) -> dict[tf.Operation, tuple[int, ...]]:
    """The late operations that each waits for, those past ones that are left out."""
    found: dict[tf.Operation, tuple[int, ...]] = {}
    for op in operations:
        before = (other for other in _before(op) if other in late)
        reached = ((numbers[other],) if other in numbers else found.get(other, ()) for other in before)
        found[op] = tuple(dict.fromkeys(i for numbers in reached for i in numbers))
    return found


def _before(op: tf.Operation) -> Iterable[tf.Operation]:
    yield from (t.op for t in op.inputs)
    yield from op.control_inputs


def _late(operations: list[tf.Operation], gradients: list[tuple[int, int]]) -> set[tf.Operation]:
    """Operations that a tape made, or that depend on one made before.

    The gradient of a loop gives the loop of the forward pass more inputs; that does not make it late.
    """
    made = {i for first, behind in gradients for i in range(first, behind)}
    late: set[tf.Operation] = set()
    for i, op in enumerate(operations):
        if i in made or any(other in late for other in _before(op)):
            late.add(op)
    return late


def _running(trace: Trace, operations: list[tf.Operation], constant: set[tf.Operation]) -> list[tf.Operation]:
    """The operations that a step runs: what gradients, results and writes need, without constants and weights."""
    captured = {inner.op for _, inner in trace.graph.captures}
    effects = [op for op in operations if obstacles.writes(op)]
    needed: set[tf.Operation] = set()
    stack = [*effects, *(t.op for t in (*trace.results, *trace.wanted))]
    while stack:
        op = stack.pop()
        if op not in needed:
            needed.add(op)
            stack += [t.op for t in op.inputs]
    needed |= {t.op for t in trace.batch}
    return [op for op in operations if op in needed - constant - captured and op.type not in _FREE]


class _Numbering:
    """Numbers of buffers."""

    def __init__(self, buffers: Buffers, numbers: dict[tf.Operation, int]) -> None:
        self._buffers, self._numbers = buffers, numbers
        self._known: dict[Any, int] = {}
        self.sizes: list[int] = []
        self.makers: list[int] = []

    def _number(self, tensor: tf.Tensor) -> int:
        key = tensor.ref()
        if key not in self._known:
            self._known[key] = len(self.sizes)
            self.sizes.append(self._buffers.bytes(tensor))
            self.makers.append(self._numbers[tensor.op])
        return self._known[key]

    def reads(self, op: tf.Operation) -> tuple[int, ...]:
        """What an operation reads; of what it takes only the shape of, nothing."""
        return tuple(self.of(op.inputs if op.type not in SHAPE_ONLY else ()))

    def makes(self, op: tf.Operation) -> tuple[int, ...]:
        """The buffers that an operation makes."""
        return tuple(
            self._number(t) for t in op.outputs if tensor_buffers.renamed(t) is None and self._buffers.bytes(t) >= SMALL
        )

    def of(self, tensors: Iterable[tf.Tensor]) -> frozenset[int]:
        """The buffers of tensors, without those of constants, weights and shapes."""
        roots = (self._buffers.root(t) for t in tensors)
        made = (t for t in roots if t.op in self._numbers and t.op.type not in SHAPE_ONLY)
        return frozenset(self._number(t) for t in made if self._buffers.bytes(t) >= SMALL)


def _obstacles(trace: Trace, operations: list[tf.Operation]) -> dict[Call, str]:
    """Why calls must not be run twice. Written Keras variables are no obstacle: a replay leaves them alone."""
    functions = obstacles.in_functions(trace.graph)
    suspects = [
        i for i, op in enumerate(operations) if op.op_def.is_stateful or obstacles.functions_called(op.node_def)
    ]
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
