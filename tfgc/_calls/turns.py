"""When the operations of a traced step run: in the forward or the backward pass, and behind which others."""

from collections.abc import Iterable, Set

import tensorflow as tf


def turns(
    operations: list[tf.Operation], late: set[tf.Operation], updates: list[tuple[int, int, tf.Tensor]]
) -> dict[tf.Operation, int]:
    """When each operation runs: even turns are of forward passes, odd ones of backward passes.

    The executor starts what waits for nothing: of two forward passes in one step, the second one begins with the first,
    unless it reads weights that were updated in between.
    """
    found: dict[tf.Operation, int] = {}
    updated: dict[int, list[tf.Operation]] = {}
    left = updates[::-1]
    for i, op in enumerate(operations):
        while left and left[-1][0] <= i:
            _, variable, gradient = left.pop()
            updated.setdefault(variable, []).append(gradient.op)
        before = [*_before(op), *(other for t in op.inputs for other in updated.get(id(t), ()))]
        own = int(op in late)
        known = (found.get(other, 0) for other in before)
        found[op] = max((turn + (turn % 2 != own) for turn in known), default=own)
    return found


def waits(
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


def late(operations: list[tf.Operation], gradients: list[tuple[int, int]]) -> set[tf.Operation]:
    """Operations that a tape made, or that depend on one made before.

    The gradient of a loop gives the loop of the forward pass more inputs; that does not make it late.
    """
    made = {i for first, behind in gradients for i in range(first, behind)}
    found: set[tf.Operation] = set()
    for i, op in enumerate(operations):
        if i in made or any(other in found for other in _before(op)):
            found.add(op)
    return found


def places_under_xla(runs: list[tf.Operation], gradients: Set[tf.Operation]) -> dict[tf.Operation, float]:
    """The place of each operation in XLA's order: gradients of weights come right behind what they are made of.

    XLA's scheduler prefers what frees memory: such a gradient is small, and often the last to read an activation.
    """
    places: dict[tf.Operation, float] = {}
    for i, op in enumerate(runs):
        behind = max((places[t.op] for t in op.inputs if t.op in places), default=0.0)
        places[op] = behind + 0.5 if op in gradients else float(i)
    return places
