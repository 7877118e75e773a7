"""Let replays wait for gradients of kept layers that ran after them, where a tape comes to the replay first.

A tape goes back through branches operation by operation. So it may trace the replay of one branch before it has
differentiated another that is kept, and nothing makes the replay wait for what was not there: what the kept branch
stores stays, and what both need adds up. All is traced when an optimizer updates the weights.

Of kept layers those gradients of weights are awaited that read what the forward pass made.

Invariant: an edge leads to the start of a replay from an operation that does not wait for it. So there is no circle.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import tensorflow as tf

from tfgc._framework import in_place_updates, operation_order, replay_order
from tfgc._framework.versions import attribute


def wait_for_kept(graph: Any, gradients: Iterable[tf.Tensor], needed: Callable[[tf.Operation], bool]) -> None:
    """Let replays wait for those of these gradients that are `needed` and belong to what ran after their first runs."""
    passes = [each for each in replay_order.passes(graph) if each.replays]
    if not passes:
        return
    made = {op: i for i, op in enumerate(graph.get_operations())}
    computing = [op for op in in_place_updates.last_steps(gradients) if op.type not in in_place_updates.LAST_STEPS]
    for each in passes:
        first_runs = [(made[replay.made], replay.start) for replay in each.replays if replay.made in made]
        awaited: dict[tf.Operation, list[tf.Operation]] = defaultdict(list)
        for op in computing:
            position = _forward_position(op, made, each.begun)
            before = [run for run in first_runs if run[0] < position]
            first = max(before, key=lambda run: run[0])[1].op if before else None
            if first is not None and made[op] > made[first] and needed(op):
                awaited[first].append(op)
        for first, others in awaited.items():
            behind = operation_order.descendants(first)
            attribute(first, "_add_control_inputs")([op for op in others if op not in behind])


def _forward_position(op: tf.Operation, made: Mapping[tf.Operation, int], begun: int) -> int:
    """Where in the forward pass the operation is whose gradient this one computes, else the last that it reads."""
    read = [x for x in op.inputs if made[x.op] < begun]
    readers = [reader for x in read for reader in x.consumers() if made[reader] < begun]
    # What computes a gradient is named after the operation whose gradient it is.
    own = [made[reader] for reader in readers if f"/{reader.name}/" in f"/{op.name}/"]
    return max(own or [made[x.op] for x in read], default=0)
