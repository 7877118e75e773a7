"""Segments of equal node count.

Common practice (PyTorch's `checkpoint_sequential` cuts so). It looks at no
costs and needs no sizes, so it also plans models whose input sizes are not known. O(n).
"""

from tfgc import strategies
from tfgc._plan import Plan


def plan(graph, *, segments=None):
    """Cut into `segments` parts (default: about the square root of the nodes)."""
    n = strategies.segment_count(graph, segments)
    cuts = [round(i * len(graph) / n) for i in range(1, n)]
    return Plan.from_cuts(graph, cuts, strategy="uniform", options={"segments": n})
