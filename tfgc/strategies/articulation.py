"""About sqrt(n) cuts at single-tensor separators, evenly spread by cost.

The "memory" mode of TF1's gradient-checkpointing (Salimans and Bulatov 2018), which checkpoints articulation points of
the graph: where a single tensor leads from everything before to everything after, the cut stores only that one. The
cost of a node is the bytes of its outputs. A graph without such points is kept whole. O(n^2).
"""

import itertools

from tfgc import strategies
from tfgc._core.graph import Graph
from tfgc._core.plan import Plan


def plan(graph: Graph, *, segments: int | None = None) -> Plan:
    """Cut into at most `segments` parts (default: about the square root of the nodes).

    Example:
        >>> import keras, tfgc
        >>> inputs = keras.Input((8,))
        >>> a = keras.layers.Dense(8, name="before")(inputs)
        >>> b = keras.layers.Dense(8, name="branch")(a)
        >>> c = keras.layers.Dense(8)(keras.layers.Add(name="joined")([a, b]))
        >>> model = keras.Model(inputs, keras.layers.Dense(8)(c))
        >>> plan = tfgc.plan(model, strategy="articulation", segments=2)
        >>> any("branch" in segment.nodes[-1] for segment in plan.segments)  # two tensors would cross that cut
        False
    """
    n = strategies.segment_count(graph, segments)
    separators = [p for p in range(1, len(graph)) if sum(ref.node not in graph.inputs for ref in graph.cut(p)) == 1]
    before = [0, *itertools.accumulate(graph.node_bytes)]
    share = before[-1] / n
    cuts = {min(separators, key=lambda p: abs(before[p] - i * share)) for i in range(1, n) if separators}
    return Plan.from_cuts(graph, cuts, strategy="articulation", options={"segments": n})
