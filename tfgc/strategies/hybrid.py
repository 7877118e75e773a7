"""Keep, recompute, slice and store on the host, chosen together: the least work within a budget for the device and one
for the host.

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

from tfgc import strategies
from tfgc._core.graph import Graph
from tfgc._core.plan import Plan
from tfgc._errors import check_int
from tfgc._simulate import outlooks, simulator
from tfgc.strategies import _cut_places, _links
from tfgc.strategies._flat_plans import FlatPlans, Path
from tfgc.strategies._frontier import Frontier
from tfgc.strategies._host_plans import HostPlans

# Plans of larger graphs that are made; up to so many states all that differ are.
_CANDIDATES, _SMALL = 24, 200


def plan(
    graph: Graph,
    *,
    budget: int,
    host_budget: Any = None,
    slices: int = 1,
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
    options = {"host_budget": host_budget, "slices": slices, "bandwidth": bandwidth, "speed": speed}
    return frontier(graph, positions=positions, **options).within(budget)


def frontier(
    graph: Graph,
    *,
    host_budget: Any = None,
    slices: int = 1,
    bandwidth: Any = None,
    speed: float | None = None,
    positions: int = 40,
) -> Frontier:
    """The plans from the least peak to the plain step."""
    link, slices = _links.link(graph, bandwidth, speed), check_int("slices", slices)
    host = None if host_budget is None else _links.byte_count("host_budget", host_budget)
    places = _cut_places.places(graph)
    optimal = strategies.get("optimal")(graph, slices=slices)
    merged = _cut_places.merged(graph, places, check_int("positions", positions))
    chosen = sorted({*merged, *_cut_places.of(optimal)})
    plain = Plan.from_cuts(graph, [], strategy="hybrid")
    most, (floor, _) = simulator.predict(graph, plain).peak_bytes, outlooks.floor(graph)
    found = HostPlans(FlatPlans(graph, most, chosen, slices, host=True), link, host)
    least = found.least_peak(max(1, floor // slices), most)
    paths = _every(found, most) if len(found.plans) <= _SMALL else _some(found, least, most)
    options = {"host_budget": host, "slices": slices, "bandwidth": bandwidth, "speed": speed}
    options = {name: value for name, value in options.items() if value not in (None, 1)}
    if len(chosen) < len(places) or found.thinned:
        options["coarsened"] = len(chosen)
    plans = [found.plans.plan(path, strategy="hybrid") for path in paths]
    plans += [plain, optimal]
    plans = [dataclasses.replace(each, strategy="hybrid", options=options, link=link) for each in plans]
    if host is not None:
        plans = [each for each in plans if simulator.predict(graph, each).host_bytes <= host]
    return Frontier.of(graph, plans)


def _every(found: HostPlans, most: int) -> Iterator[Path]:
    """The cheapest path at each budget that has another one."""
    path = found.cheapest(most)
    while path is not None:
        yield path
        path = found.cheapest(found.peak(path) - 1)


def _some(found: HostPlans, least: int, most: int) -> Iterator[Path]:
    """The cheapest paths at some budgets."""
    for budget in np.geomspace(least, most, _CANDIDATES):
        path = found.cheapest(int(budget))
        if path is not None:
            yield path
