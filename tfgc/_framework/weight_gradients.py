"""Let gradients of weights come before the gradients that are passed on, in the graph of a backward pass.

Nothing waits for them, so that the executor may put them off for long, and what they read stays. So an operation on the
way to what is passed on waits for operations that read the same tensor and lead to gradients of weights alone: those
that were put off the longest, and only while all of them hold more than a share of the plan's peak, since every wait
costs time. docs/design/framework.md has figures.

Invariant: there is an order of all operations, with the edges that are there already, in which each comes after what it
waits for. A new edge leads to an operation from one that needs nothing that comes later in this order but other
operations for weights, so that there is no circle.
"""

import contextlib
import contextvars
import math
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfgc._core.segments import Segmentation
from tfgc._framework import operation_order, private_api
from tfgc._framework.replaced import within
from tfgc._framework.versions import attribute

# Of a plan's peak.
_MOST_SHARE = 1 / 16


class Backlog(NamedTuple):
    """How many bytes gradients of weights that are put off may hold, in a batch of so many samples."""

    most_bytes: int
    batch: int

    @classmethod
    def of(cls, plan: Segmentation) -> "Backlog | None":
        """That of steps by a plan; None if it does not say what it needs."""
        if plan.outlook is None or plan.batch_size is None:
            return None
        return cls(int(plan.outlook.peak_bytes * _MOST_SHARE), plan.batch_size)

    def bytes_of(self, tensor: tf.Tensor) -> int:
        """Those of a tensor."""
        if tensor.shape.rank is None:
            return 0
        return tensor.dtype.size * math.prod(self.batch if size is None else size for size in tensor.shape)


_BACKLOG: contextvars.ContextVar[Backlog | None] = contextvars.ContextVar("tfgc_backlog", default=None)
backlog = _BACKLOG.get  # the limit for what runs here


def limited(backlog: Backlog | None) -> contextlib.AbstractContextManager:
    """A context that limits the backlog of what runs in it; None for no limit."""
    return within(_BACKLOG, backlog)


class Backward:
    """The operations of a backward pass in the graph being built, behind `after`, or from now on."""

    def __init__(self, after: Sequence[tf.Tensor] | None = None) -> None:
        self._graph = tf.compat.v1.get_default_graph()
        operations = self._graph.get_operations()
        self.begun = len(operations)  # how many of the graph there were before
        if after is not None:
            targets = {tensor.op for tensor in after}
            self.begun = next((i for i in range(len(operations), 0, -1) if operations[i - 1] in targets), 0)

    def order(self, passed_on: Iterable[Any], weights: Iterable[Any], backlog: Backlog | None) -> None:
        """Compute gradients of weights that were asked for before those passed on, where both read the same."""
        # Others would be pruned. XLA makes its own order.
        if backlog is None or tf.executing_eagerly() or private_api.in_xla():
            return
        made = self._graph.get_operations()[self.begun :]
        _wait(made, _operations(passed_on), _operations(weights), backlog)

    def order_so_far(
        self, upstream: Iterable[Any], asks_for: Callable[[tf.Tensor], bool], backlog: Backlog, late: Collection[Any]
    ) -> list[tf.Tensor]:
        """The same for what was differentiated by a tape, up to the gradients `upstream` of what comes next.

        Returns what is put off in the end. Nothing is made to wait for `late` operations.
        """
        weights, others = self.so_far(upstream, asks_for, late)
        return _wait(self._graph.get_operations()[self.begun :], [*_operations(upstream), *others], weights, backlog)

    def so_far(
        self, upstream: Iterable[Any], asks_for: Callable[[tf.Tensor], bool], late: Collection[tf.Operation] = ()
    ) -> tuple[list[tf.Operation], set[tf.Operation]]:
        """The operations that made gradients of weights, without `late` ones, and all others that nothing reads yet.

        Gradients of weights are those that nothing reads yet, and that belong to something asked for: to an input of an
        operation of the forward pass, found by what both read, by its name, and by the shape of the gradient or of what
        it reshapes.
        """
        made = self._graph.get_operations()[self.begun :]
        inside = set(made)
        before = operation_order.dependencies(made)
        main = operation_order.ancestors(before, inside.intersection(_operations(upstream)))
        unread = [op for op in made if op not in main and not any(tensor.consumers() for tensor in op.outputs)]
        weights = []
        for op in unread:
            if op in late:
                continue
            aside = operation_order.ancestors(before, [op], main)
            read = (tensor for other in aside for tensor in other.inputs)
            readers = {reader for tensor in read if tensor.op not in inside for reader in tensor.consumers()} - inside
            # What computes a gradient is named after the operation whose gradient it is.
            own = [reader for reader in readers if any(f"/{reader.name}/" in f"/{other.name}" for other in aside)]
            values = (value for reader in own or readers for value in reader.inputs)
            alike = (value for value in values if any(_alike(value, gradient) for gradient in _before_reshaping(op)))
            if any(map(asks_for, alike)):
                weights.append(op)
        return weights, set(unread).difference(weights)


def _before_reshaping(op: tf.Operation) -> list[tf.Tensor]:
    """The result of an operation, and what it is a reshaped or transposed copy of."""
    found = list(op.outputs[:1])
    while op.type in ("Identity", "Reshape", "Transpose"):
        op = op.inputs[0].op
        found += op.outputs[:1]
    return found


def _alike(value: tf.Tensor, gradient: tf.Tensor) -> bool:
    return value.shape.rank == gradient.shape.rank and value.shape.is_compatible_with(gradient.shape)


def _operations(gradients: Iterable[Any]) -> list[tf.Operation]:
    found = [gradient for gradient in gradients if gradient is not None]
    return [tensor.op for tensor in tf.nest.flatten(found, expand_composites=True)]


def _wait(
    operations: Sequence[tf.Operation], passed_on: list[tf.Operation], weights: list[tf.Operation], backlog: Backlog
) -> list[tf.Tensor]:
    """Add the edges; return what is put off in the end."""
    made, before = set(operations), operation_order.once_fused(operation_order.dependencies(operations))
    place = {op: i for i, op in enumerate(operation_order.in_order(before))}
    weights = sorted(made.intersection(weights), key=place.__getitem__)
    # Where nothing is passed on, all comes before the gradients that are made last.
    main = operation_order.ancestors(before, made.intersection(passed_on) or weights[-1:])
    aside = operation_order.ancestors(before, weights) - main
    latest: dict[tf.Operation, int] = {}  # of what an operation needs on the way to what is passed on
    for op in place:
        latest[op] = place[op] if op not in aside else max((latest[other] for other in before[op]), default=-1)
    readers: dict[Any, list[tf.Operation]] = defaultdict(list)
    after: dict[tf.Operation, list[tf.Operation]] = defaultdict(list)
    for op in aside:
        for tensor in op.inputs:
            readers[tensor.ref()].append(op)
            after[tensor.op].append(op)
    put_off: deque[tuple[list[tf.Operation], int]] = deque()
    known: set[tf.Operation] = set()
    for op in sorted(main, key=place.__getitem__):
        beside = [reader for tensor in op.inputs for reader in readers.get(tensor.ref(), ())]
        ends = [end for end in operation_order.ends(beside, after, latest, place[op]) if end not in known]
        if ends:
            known.update(ends)
            held = {tensor.ref(): tensor for reader in beside for tensor in reader.inputs}
            put_off.append((ends, sum(map(backlog.bytes_of, held.values()))))
        while put_off and not operation_order.may_be_fused(op) and sum(n for _, n in put_off) > backlog.most_bytes:
            attribute(op, "_add_control_inputs")(put_off.popleft()[0])
    return [op.outputs[0] for ends, _ in put_off for op in ends]
