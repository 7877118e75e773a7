"""Keep, recompute and offload, chosen together: the least work for two budgets, of the device and of the host.

A hybrid of recomputation and offloading after Beaumont et al., "Efficient Combination of Rematerialization and
Offloading for Training DNNs" (POFO), NeurIPS 2021, for any graph in its fixed order; see `_host_plans`. One replay, not
nested. As in `budget`, one front is made for all budgets, and the simulator judges its plans: copies to the host and
back included, and the time that replays wait for them. Where labels were thinned out or places merged, options say
`coarsened`, and the outlook bounds the gap.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from tfgc._core.graph import Graph
from tfgc._core.plan import Plan
from tfgc._errors import check_int
from tfgc._simulate import outlooks
from tfgc.strategies import _cut_places
from tfgc.strategies._flat_plans import Path
from tfgc.strategies._frontier import Frontier
from tfgc.strategies._host_memory import HostMemory
from tfgc.strategies._host_plans import HostPlans

# Up to so many states all plans that differ are made. Above, so many are: for a small graph, and for a large one.
_ALL, _SMALL = 60, 200
_OF_SMALL, _OF_LARGE = 40, 24


def plan(
    graph: Graph,
    *,
    budget: int,
    host_budget: Any = None,
    bandwidth: Any = None,
    speed: float | None = None,
    positions: int = 40,
) -> Plan:
    """Return the plan of least work whose predicted peak is at most `budget` bytes, and `host_budget` on the host.

    `bandwidth` is that of the link in bytes a second, `speed` the device's flops a second, which is needed unless
    layers were timed; without them copies count as free.

    Example:
        >>> import keras, tfgc
        >>> layers = [keras.layers.Dense(8, activation="gelu") for _ in range(9)]
        >>> model = keras.Sequential([keras.Input((8,)), *layers])
        >>> plan = tfgc.plan(model, 4096, strategy="hybrid", budget="60%", host_budget="1MB")
        >>> sum(segment.host_bytes or 0 for segment in plan.segments) <= 1_000_000
        True
    """
    options = {"host_budget": host_budget, "bandwidth": bandwidth, "speed": speed}
    return frontier(graph, positions=positions, **options).within(budget)


def frontier(
    graph: Graph,
    *,
    host_budget: Any = None,
    bandwidth: Any = None,
    speed: float | None = None,
    positions: int = 40,
) -> Frontier:
    """The plans from the least peak to the plain step."""
    host = HostMemory.of(graph, host_budget, bandwidth, speed)
    plans, left_out = _found(graph, host, check_int("positions", positions))
    plans.append(Plan.from_cuts(graph, [], strategy="hybrid"))
    options = {**host.options, **left_out}
    plans = [dataclasses.replace(each, strategy="hybrid", options=options, link=host.link) for each in plans]
    return Frontier(graph, (each for each in plans if host.allows(graph, each)))


def _found(graph: Graph, host: HostMemory, positions: int) -> tuple[list[Plan], dict[str, Any]]:
    """The plans of least work at each budget, or at some, and that of least peak; what options say if not all are."""
    places, chosen, optimal = _cut_places.with_optimal(graph, positions)
    most, (floor, _) = outlooks.plain_peak(graph), outlooks.floor(graph)
    found = HostPlans(_cut_places.searched(graph, most, chosen, host=True), host)
    least = found.least_peak(max(1, floor), most)
    states = len(found.plans.states)
    some = _OF_SMALL if states <= _SMALL else _OF_LARGE
    paths = _every(found, most) if states <= _ALL else map(found.cheapest, np.geomspace(least, most, some).astype(int))
    plans = [found.plans.plan(path, strategy="hybrid") for path in paths if path is not None]
    coarsened = {"coarsened": len(chosen)} if len(chosen) < len(places) or found.pruning.thinned else {}
    return [*plans, optimal], coarsened | found.plans.searched


def _every(found: HostPlans, most: int) -> Iterator[Path]:
    """The cheapest path at each budget that has another one."""
    path = found.cheapest(most)
    while path is not None:
        yield path
        path = found.cheapest(found.peak(path) - 1)
