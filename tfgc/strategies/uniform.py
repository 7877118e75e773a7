"""Segments of equal node count.

Common practice, as in PyTorch's `checkpoint_sequential`. It ignores costs and needs no sizes, so it also plans models
whose input sizes are not known. O(n).
"""

from tfgc import strategies
from tfgc._core.graph import Graph
from tfgc._core.plan import Plan


def plan(graph: Graph, *, segments: int | None = None) -> Plan:
    """Cut into `segments` parts (default: about the square root of the nodes).

    Example:
        >>> import keras, tfgc
        >>> model = keras.Sequential([keras.Input((8,))] + [keras.layers.Dense(8) for _ in range(9)])
        >>> plan = tfgc.plan(model, strategy="uniform", segments=4)
        >>> [len(segment.nodes) for segment in plan.segments]
        [4, 4, 4, 6]
    """
    n = strategies.segment_count(graph, segments)
    cuts = [round(i * len(graph) / n) for i in range(1, n)]
    return Plan.from_cuts(graph, cuts, strategy="uniform", options={"segments": n})
