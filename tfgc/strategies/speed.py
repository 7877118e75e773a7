"""Keeps what convolutions and matrix products put out, and recomputes the cheap rest.

The "speed" mode of TF1's gradient-checkpointing (Salimans and Bulatov 2018). The graph is cut
behind each node that does much arithmetic for what it puts out. Its own run is not repeated: a replay
leaves out its last node where no backward pass reads the result, and a node whose own backward pass
does read it (an activation inside of it) is kept by itself. O(n).
"""

import math

from tfgc._core.buffers import Buffers
from tfgc._core.plan import Plan

# Flops for each output element: normalisations and activations do 1 to 10, a 3x3 depthwise convolution 18.
_MUCH = 12


def plan(graph):
    """Cut behind every node that does much arithmetic.

    Example:
        >>> import keras, tfgc
        >>> layers = [keras.layers.Dense(8, name="matrix"), keras.layers.LayerNormalization(name="cheap")]
        >>> model = keras.Sequential([keras.Input((8,)), *layers, keras.layers.Dense(8, name="next")])
        >>> [(segment.nodes, segment.mode) for segment in tfgc.plan(model, strategy="speed").segments]
        [(('matrix',), 'recompute'), (('cheap', 'next'), 'keep')]
    """
    buffers = Buffers.of(graph)
    pieces, start = [], 0
    for i, node in enumerate(graph.nodes):
        elements = sum(math.prod(d or graph.batch_size or 1 for d in spec.shape) for spec in node.outputs)
        if graph.costs[i].flops <= _MUCH * elements or i == len(graph) - 1:
            continue
        if buffers.wakes[i] > i + 1:
            pieces.append((start, i + 1, "recompute"))
        else:
            pieces += [(start, i, "recompute")] if start < i else []
            pieces.append((i, i + 1, "keep"))
        start = i + 1
    return Plan.from_pieces(graph, [*pieces, (start, len(graph), "keep")], strategy="speed")
