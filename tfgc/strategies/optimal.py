"""The least peak that one replay can reach, exactly, over all cuts of the graph's order.

Feng & Huang, "Optimal Gradient Checkpoint Search for Arbitrary Computation Graphs", CVPR 2021, find such plans by
dynamic programming. Here a state is a position together with those buffers that earlier segments hold and later nodes
still read: a buffer in several cuts is stored once, and is counted once. Segments may be kept where that stores less
than running them again (an addition saves nothing).

Guarantee: no plan of kept and recomputed segments without nesting has a lower predicted peak. Among equal peaks one of
least work is taken, exactly so where all byte counts are multiples of 1/512 of the peak, else about. O(n w) sweeps of
segments up to w nodes long, w being what fits under the peak of `sqrt`.

Where many branches run side by side, as in MIRNet, the sets of buffers held are too many to look at all of them. Then
segments start at 100 places alone, chosen as by `budget`, and the plan's options say `coarsened`. If that is still more
than `_flat_plans` affords, they say which part of the sets was `searched`.
"""

from typing import Any

from tfgc import strategies
from tfgc._core.graph import Graph
from tfgc._core.plan import Plan
from tfgc._simulate import simulator
from tfgc.strategies import _cut_places
from tfgc.strategies._flat_paths import least_peak, least_peak_bytes
from tfgc.strategies._flat_plans import FlatPlans
from tfgc.strategies._frontier import Frontier

_PLACES = 100
# Graphs with more states than this at so many places keep to these: all places would take minutes or more.
_MOST_STATES = 5000


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
    places, sqrt = _cut_places.places(graph), strategies.get("sqrt")
    allowed, simple = set(places), []
    for n in _counts(len(graph)):
        cuts = [cut for cut in _cut_places.of(sqrt(graph, segments=n))[1:] if cut in allowed]
        simple.append((simulator.predict(graph, Plan.from_cuts(graph, cuts, strategy="optimal")).peak_bytes, cuts))
    limit, cuts = min(simple)
    # The simple plan of least peak stays among the plans.
    chosen = sorted({*_cut_places.merged(graph, places, _PLACES), *cuts})
    plans = FlatPlans(graph, limit, chosen)
    options: dict[str, Any] = {} if len(chosen) == len(places) else {"coarsened": len(chosen)}
    if options and len(plans.states) <= _MOST_STATES and not plans.searched:
        finer = FlatPlans(graph, int(least_peak_bytes(plans)))
        if not finer.searched:
            plans, options = finer, {}
    options |= plans.searched
    path = least_peak(plans)
    found = [] if path is None else [plans.plan(path, strategy="optimal", options=options)]
    if "searched" in options:  # The simple plan may be among what was left out.
        found.append(Plan.from_cuts(graph, cuts, strategy="optimal", options=options))
    return Frontier(graph, found).plans[0]


def _counts(n: int) -> list[int]:
    """Numbers of segments, one of which comes close to the least peak: the root of n, and fractions and multiples."""
    return sorted({min(n, max(1, round(n**0.5 * factor))) for factor in (0, 0.5, 0.7, 1, 1.4, 2, 3)})
