"""The least peak that one replay can reach, exactly, over all cuts of the graph's order.

Feng & Huang, "Optimal Gradient Checkpoint Search for Arbitrary Computation Graphs", CVPR 2021, find such plans by
dynamic programming. Here the state is a position together with those buffers that earlier segments hold and later nodes
still read: a buffer in several cuts is stored once, and is counted once. Segments may be kept where that stores less
than running them again (an addition saves nothing). See `_search`.

Guarantee: no plan of kept and recomputed segments without nesting has a lower predicted peak. Among equal peaks one of
least work is taken, exactly so where all byte counts are multiples of 1/512 of the peak, else about. O(n w) segments, w
being the nodes that fit under the peak of `sqrt`.

Where that would be too many, in long graphs and where many branches run side by side, segments start at some places
alone, and the plan's options say `coarsened`.
"""

import dataclasses

from tfgc import strategies
from tfgc._core.graph import Graph
from tfgc._core.plan import Plan
from tfgc._simulate import simulator
from tfgc.strategies._places import searched
from tfgc.strategies._search import LeastWork

# Segments first start at few places: what they come to leaves less to look at, at many.
_FEW, _MANY = 64, 250


def plan(graph: Graph) -> Plan:
    """Return the plan of least predicted peak.

    Example:
        >>> import keras, tfgc
        >>> layers = [keras.layers.Dense(8, activation="gelu") for _ in range(9)]
        >>> model = keras.Sequential([keras.Input((8,)), *layers])
        >>> best, simple = tfgc.plan(model, strategy="optimal"), tfgc.plan(model, strategy="sqrt")
        >>> best.outlook.peak_bytes <= simple.outlook.peak_bytes
        True
    """
    sqrt = [strategies.get("sqrt")(graph, segments=n) for n in _counts(len(graph))]
    limit, _, simple = min((simulator.predict(graph, each).peak_bytes, k, each) for k, each in enumerate(sqrt))
    search, options = searched(graph, limit, _FEW)
    if search.least_peak <= limit and options.get("coarsened") == _FEW:
        finer, found = searched(graph, search.least_peak, _MANY)
        if finer.least_peak <= search.least_peak:
            search, options = finer, found
    if search.least_peak > limit:
        return dataclasses.replace(simple, strategy="optimal", options=options)
    return LeastWork(search, search.least_peak).plan(search.least_peak, strategy="optimal", options=options)


def _counts(n: int) -> list[int]:
    """Numbers of segments, one of which comes close to the least peak: the root of n, and fractions and multiples."""
    return sorted({min(n, max(1, round(n**0.5 * factor))) for factor in (0, 0.5, 0.7, 1, 1.4, 2, 3)})
