"""Let replays wait for gradients of kept layers that ran after them, where a tape comes to the replay first.

A tape goes back through branches operation by operation. So it may trace the replay of one branch before it has
differentiated another that is kept, and nothing makes the replay wait for what was not there: what the kept branch
stores stays, and what both need adds up. All is traced when an optimizer updates the weights.

Of kept layers those gradients of weights are awaited that read what the forward pass made.

Invariant: an edge leads to the start of a replay from an operation that does not wait for it. So there is no circle.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf

from tfgc._framework import graph_building, in_place_updates, operation_order, replay_order


def wait_for_kept(graph: Any, gradients: Iterable[tf.Tensor]) -> None:
    """Let the replays in a graph wait for those of these gradients that belong to what ran after their first runs."""
    passes = replay_order.passes(graph)
    if not any(each.replays for each in passes):
        return
    made = {op: i for i, op in enumerate(graph.get_operations())}
    computing = [op for op in in_place_updates.last_steps(gradients) if op.type not in in_place_updates.LAST_STEPS]
    for each in passes:
        first_runs = [(made[replay.made], replay.start) for replay in each.replays if replay.made in made]
        for op in computing:
            position = _forward_position(op, made, each.begun)
            before = [run for run in first_runs if run[0] < position]
            if not before:
                continue
            _, start = max(before, key=lambda run: run[0])
            if made[op] > made[start.op] and op not in operation_order.descendants(start.op):
                graph_building.wait_for(start, op.outputs[:1])


def _forward_position(op: tf.Operation, made: Mapping[tf.Operation, int], begun: int) -> int:
    """Where in the forward pass the operation is whose gradient this one computes, else the last that it reads."""
    read = [x for x in op.inputs if made[x.op] < begun]
    readers = [reader for x in read for reader in x.consumers() if made[reader] < begun]
    # What computes a gradient is named after the operation whose gradient it is.
    own = [made[reader] for reader in readers if f"/{reader.name}/" in f"/{op.name}/"]
    return max(own or [made[x.op] for x in read], default=0)
