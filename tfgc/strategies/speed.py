"""Keeps the outputs of convolutions and matrix products, and recomputes the cheap rest.

The "speed" mode of TF1's gradient-checkpointing (Salimans and Bulatov 2018). The graph is cut after each
product, known by its kind. That node is not run again: a replay leaves out its last node where no backward pass reads
the result, and a node whose own backward pass reads it is a kept segment. O(n).
"""

from tfgc._core.buffers import Buffers
from tfgc._core.graph import Graph
from tfgc._core.plan import Plan
from tfgc._core.segments import Piece

# In the names of kinds of nodes: TensorFlow's operations, and Keras's layers.
_PRODUCTS = ("MatMul", "Conv", "Einsum", "Dense")


def plan(graph: Graph) -> Plan:
    """Cut after every matrix product and convolution.

    Example:
        >>> import keras, tfgc
        >>> layers = [keras.layers.Dense(64, activation="gelu") for _ in range(4)]
        >>> model = keras.Sequential([keras.Input((64,)), *layers])
        >>> plan = tfgc.plan(model, 4096, strategy="speed")
        >>> plan.outlook.peak_bytes < plan.outlook.plain_bytes
        True
    """
    replayed_to = Buffers.of(graph).first_replay_end
    pieces: list[Piece] = []
    start = 0
    for i, node in enumerate(graph.nodes):
        if not any(kind in node.kind for kind in _PRODUCTS) or i == len(graph) - 1:
            continue
        if replayed_to[i] > i + 1:
            pieces.append((start, i + 1, "recompute"))
        else:
            pieces += [(start, i, "recompute")] if start < i else []
            pieces.append((i, i + 1, "keep"))
        start = i + 1
    return Plan.from_pieces(graph, [*pieces, (start, len(graph), "keep")], strategy="speed")
