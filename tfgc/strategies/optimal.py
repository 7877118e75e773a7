"""The least peak that one replay can reach, exactly, over all cuts of the graph's order.

Feng & Huang, "Optimal Gradient Checkpoint Search for Arbitrary Computation Graphs", CVPR
2021, find such plans by dynamic programming. Here a state is a position together with those
buffers that earlier segments hold and later nodes still read: a buffer in several
cuts is stored once, and is counted once. For a trial peak the least bytes held in each state decide
whether the rest fits; trial peaks are halved until the least is known. Segments
may be kept where that stores less than running them again (an addition keeps nothing).

Guarantee: no plan of kept and recomputed segments without nesting, and without cuts between a node
and one that writes over its output, has a lower predicted peak; among equal peaks the cheapest of
those looked at is taken. O(n w) sweeps of segments up to w nodes long, w being what fits
under the peak of `sqrt`.
"""

import itertools

from tfgc import strategies
from tfgc._core.buffers import Buffers
from tfgc._core.plan import Plan
from tfgc._simulate import simulator
from tfgc.strategies import _flat_plans


def plan(graph):
    """Return the plan of least predicted peak.

    Example:
        >>> import keras, tfgc
        >>> layers = [keras.layers.Dense(8, activation="gelu") for _ in range(9)]
        >>> model = keras.Sequential([keras.Input((8,)), *layers])
        >>> best, simple = tfgc.plan(model, strategy="optimal"), tfgc.plan(model, strategy="sqrt")
        >>> best.outlook.peak_bytes <= simple.outlook.peak_bytes
        True
    """
    joints = Buffers.of(graph).takes
    simple = []
    for n in _counts(len(graph)):
        ends = itertools.accumulate(len(s.nodes) for s in strategies.apply("sqrt", graph, segments=n).segments[:-1])
        simple.append(Plan.from_cuts(graph, [end for end in ends if not joints[end]], strategy="optimal"))
    limit = min(simulator.predict(graph, plan).peak_bytes for plan in simple)
    paths = _flat_plans.Paths(graph, limit)
    way = paths.least_peak()
    cheaper = paths.cheapest(paths.peak(way))
    if cheaper is not None and paths.work(cheaper) < paths.work(way):
        way = cheaper
    return paths.plan(way, strategy="optimal")


def _counts(n):
    """Numbers of segments, one of which comes close to the least peak: the root of n, its halves and doubles."""
    return sorted({min(n, max(1, round(n**0.5 * factor))) for factor in (0, 0.5, 0.7, 1, 1.4, 2, 3)})
