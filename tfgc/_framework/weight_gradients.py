"""Let gradients of weights come before the gradients that are passed on, in the graph of a backward pass.

The gradient of a convolution is two operations, which read the same upstream gradient: one makes the gradient of the
weights, which nothing waits for, the other goes on to the layers before. The executor may put the first off for long,
and what it reads stays: the layer's input and the upstream gradient. In a chain of convolutions that was a fifth to a
third of the plan's peak, another amount in each step. So an operation on the way to what is passed on waits for
operations that read the same tensor and lead to gradients of weights alone. A network of many small operations becomes
slower by that, so those that hold little do not count.

Invariant: there is an order of all operations, with the edges that are there already, in which each comes after what it
waits for. A new edge leads to an operation from one that needs nothing that comes later in this order but other
operations for weights, so that there is no circle.
"""

import contextlib
import contextvars
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfgc._core.segments import Segmentation
from tfgc._framework import operation_order, private_api
from tfgc._framework.versions import attribute

# Of a plan's peak.
_LEAST_SHARE = 1 / 16


class Large(NamedTuple):
    """What counts: tensors that have so many bytes together, in a batch of so many samples."""

    least_bytes: int
    batch: int

    @classmethod
    def of(cls, plan: Segmentation) -> "Large | None":
        """What counts in steps by a plan; None if it does not say what it needs."""
        if plan.outlook is None or plan.batch_size is None:
            return None
        return cls(int(plan.outlook.peak_bytes * _LEAST_SHARE), plan.batch_size)

    def in_slices(self, slices: int) -> "Large":
        """What counts in a slice of the batch."""
        return self._replace(batch=-(-self.batch // slices))

    def is_met(self, tensors: Iterable[tf.Tensor]) -> bool:
        """Whether the tensors are large."""
        return sum(map(self._bytes, tensors)) >= self.least_bytes

    def _bytes(self, tensor: tf.Tensor) -> int:
        if tensor.shape.rank is None:
            return 0
        return tensor.dtype.size * math.prod(self.batch if size is None else size for size in tensor.shape)


_LARGE: contextvars.ContextVar[Large | None] = contextvars.ContextVar("tfgc_large", default=None)


@contextlib.contextmanager
def first_if(large: Large | None) -> Iterator[None]:
    """Say what counts for what runs in here; None for nothing."""
    token = _LARGE.set(large)
    try:
        yield
    finally:
        _LARGE.reset(token)


def large() -> Large | None:
    """What counts for what runs here."""
    return _LARGE.get()


class Backward:
    """The operations of a backward pass from some point on, in the graph being built.

    Args:
        after: What it starts after; None for what is there now.
    """

    def __init__(self, after: Sequence[tf.Tensor] | None = None) -> None:
        self._graph = tf.compat.v1.get_default_graph()
        operations = self._graph.get_operations()
        self._before = len(operations)
        if after is not None:
            targets = {tensor.op for tensor in after}
            self._before = next((i for i in range(len(operations), 0, -1) if operations[i - 1] in targets), 0)

    def order(self, passed_on: Iterable[Any], weights: Iterable[Any], large: Large | None) -> None:
        """Compute gradients of weights before those that are passed on, where both read the same.

        XLA makes its own order.

        Args:
            passed_on: The gradients with respect to what a replay is given.
            weights: Those with respect to weights that were asked for: others would be pruned.
            large: What counts.
        """
        if large is None or tf.executing_eagerly() or private_api.in_xla():
            return
        made = self._graph.get_operations()[self._before :]
        _wait(made, _operations(passed_on), _operations(weights), large)

    def order_so_far(
        self, upstream: Iterable[Any], leads_to_a_source: Callable[[tf.Tensor], bool], large: Large
    ) -> None:
        """The same for what was differentiated by a tape, up to the gradients `upstream` of what comes next.

        Gradients of weights are those that nothing reads yet, and that belong to something asked for: to an input of an
        operation of the forward pass, found by what both read, and by its shape.
        """
        made = self._graph.get_operations()[self._before :]
        inside, passed_on = set(made), _operations(upstream)
        before = operation_order.dependencies(made)
        main = operation_order.ancestors(before, inside.intersection(passed_on))
        unread = [op for op in made if op not in main and not any(tensor.consumers() for tensor in op.outputs)]
        weights = []
        for op in unread:
            read = (tensor for other in operation_order.ancestors(before, [op], main) for tensor in other.inputs)
            readers = (reader for tensor in read if tensor.op not in inside for reader in tensor.consumers())
            values = (value for reader in readers if reader not in inside for value in reader.inputs)
            if op.outputs and any(_alike(value, op.outputs[0]) and leads_to_a_source(value) for value in values):
                weights.append(op)
        _wait(made, [*passed_on, *set(unread).difference(weights)], weights, large)


def _alike(value: tf.Tensor, gradient: tf.Tensor) -> bool:
    return value.shape.rank == gradient.shape.rank and value.shape.is_compatible_with(gradient.shape)


def _operations(gradients: Iterable[Any]) -> list[tf.Operation]:
    found = [gradient for gradient in gradients if gradient is not None]
    return [tensor.op for tensor in tf.nest.flatten(found, expand_composites=True)]


def _wait(
    operations: Sequence[tf.Operation], passed_on: list[tf.Operation], weights: list[tf.Operation], large: Large
) -> None:
    """Add the edges."""
    made, before = set(operations), operation_order.dependencies(operations)
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
    for op in sorted(main, key=place.__getitem__):
        beside = [reader for tensor in op.inputs for reader in readers.get(tensor.ref(), ())]
        held = {tensor.ref(): tensor for reader in beside for tensor in reader.inputs}
        if beside and large.is_met(held.values()):
            attribute(op, "_add_control_inputs")(operation_order.ends(beside, after, latest, place[op]))
