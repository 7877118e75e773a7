"""Operations that TensorFlow merges before it runs a graph, since they do the same with the same tensors.

What several operations read of the merged one counts as reads of one tensor.
https://github.com/tensorflow/tensorflow/blob/master/tensorflow/core/graph/optimizer_cse.cc
"""

from collections.abc import Collection, Hashable
from typing import Any

import tensorflow as tf

_STAY = ("Placeholder", "PlaceholderV2", "PlaceholderWithDefault")


def merged(graph: Any, runs: Collection[str]) -> dict[str, list[tf.Operation]]:
    """For the name of each operation that runs, those that are merged with it and itself."""
    found: dict[str, list[tf.Operation]] = {}
    alike: dict[Hashable, list[tuple[Any, list[tf.Operation]]]] = {}
    for op, node in zip(graph.get_operations(), graph.as_graph_def().node):
        if op.name not in runs:
            continue
        found[op.name] = [op]
        if op.op_def.is_stateful or op.type in _STAY:
            continue
        read = [(found.get(t.op.name, [t.op])[0].name, t.value_index) for t in op.inputs]
        after = sorted(before.name for before in op.control_inputs)
        value = node.attr["value"].SerializeToString() if op.type == "Const" else None
        key = op.type, value, *(sorted(read) if op.op_def.is_commutative else read), *after
        row = alike.setdefault(key, [])
        same = next((ops for attributes, ops in row if attributes == node.attr), None)
        if same is None:
            row.append((node.attr, found[op.name]))
        else:
            same.append(op)
            found[op.name] = same
    return found
