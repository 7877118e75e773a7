"""About sqrt(n) segments of equal cost, each cut where little is alive.

Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost", arXiv:1604.06174: with sqrt(n) segments of equal
size, the stored cuts and the one segment that is being differentiated both take O(sqrt(n)) memory, for one more forward
pass. The cost of a node is the bytes of its outputs. A cut moves up to a quarter of a segment from its even place, to
where the fewest bytes are alive: beside a residual block rather than inside it. O(n segments).
"""

import itertools

from tfgc import strategies
from tfgc._core.graph import Graph
from tfgc._core.plan import Plan


def plan(graph: Graph, *, segments: int | None = None) -> Plan:
    """Cut into `segments` parts (default: about the square root of the nodes).

    Example:
        >>> import keras, tfgc
        >>> model = keras.Sequential([keras.Input((8,))] + [keras.layers.Dense(8) for _ in range(9)])
        >>> plan = tfgc.plan(model, strategy="sqrt")
        >>> [(len(segment.nodes), segment.mode) for segment in plan.segments]
        [(4, 'recompute'), (4, 'recompute'), (4, 'recompute'), (6, 'keep')]
    """
    n = strategies.segment_count(graph, segments)
    before = [0, *itertools.accumulate(graph.node_bytes)]
    share = before[-1] / n
    cuts, last = [], 0
    for i in range(1, n):
        allowed = range(last + 1, len(graph) - (n - i) + 1)
        close = [p for p in allowed if abs(before[p] - i * share) <= share / 4]
        last = min(close or allowed, key=lambda p: (graph.cut_bytes[p] if close else 0, abs(before[p] - i * share)))
        cuts.append(last)
    return Plan.from_cuts(graph, cuts, strategy="sqrt", options={"segments": n})
