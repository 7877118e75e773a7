"""Keeps the outputs of convolutions and matrix products, and recomputes the cheap rest.

The "speed" mode of TF1's gradient-checkpointing (Salimans and Bulatov 2018). The graph is cut after each node that does
much arithmetic for the size of its outputs. That node is not run again: a replay leaves out its last node where no
backward pass reads the result, and a node whose own backward pass reads it (because of an activation inside) is a kept
segment. O(n).
"""

from tfgc._core.buffers import Buffers
from tfgc._core.graph import Graph
from tfgc._core.pieces import Piece
from tfgc._core.plan import Plan

# Flops per output element: normalisations and activations do 1 to 10, a 3x3 depthwise convolution 18.
_MUCH = 12


def plan(graph: Graph) -> Plan:
    """Cut after every node that does much arithmetic.

    Example:
        >>> import keras, tfgc
        >>> layers = [keras.layers.Dense(8, name="matrix"), keras.layers.LayerNormalization(name="cheap")]
        >>> model = keras.Sequential([keras.Input((8,)), *layers, keras.layers.Dense(8, name="next")])
        >>> [(segment.nodes, segment.mode) for segment in tfgc.plan(model, strategy="speed").segments]
        [(('matrix',), 'recompute'), (('cheap', 'next'), 'keep')]
    """
    replayed_to = Buffers.of(graph).first_replay_end
    pieces: list[Piece] = []
    start = 0
    for i, node in enumerate(graph.nodes):
        if graph.costs[i].flops <= _MUCH * graph.elements(node) or i == len(graph) - 1:
            continue
        if replayed_to[i] > i + 1:
            pieces.append((start, i + 1, "recompute"))
        else:
            pieces += [(start, i, "recompute")] if start < i else []
            pieces.append((i, i + 1, "keep"))
        start = i + 1
    return Plan.from_pieces(graph, [*pieces, (start, len(graph), "keep")], strategy="speed")
