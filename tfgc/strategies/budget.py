"""The least work under a byte budget, nested replays allowed (`nested=False`: each node runs twice at most).

Dynamic programming after rotor (Beaumont et al., arXiv:1911.13214), for any graph in its fixed order; see
`_nested_plans`. One Pareto front of plans is made for all budgets, each judged by the simulator, and a budget picks
from it: a larger budget never gives a slower plan, a smaller one never a higher peak. Exact for graphs of few positions
and small byte counts. Above `positions` places to cut, neighbours are merged first, where the cut between them is
large; the plan's options then say `coarsened`, and its outlook bounds the gap: no plan of that peak has less overhead
than `least_overhead`. O(p^3) for p positions.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tfgc import strategies
from tfgc._core.graph import Graph
from tfgc._core.plan import Plan
from tfgc._errors import OptionError, check_bool, check_int
from tfgc._simulate import simulator
from tfgc.strategies import _cut_places
from tfgc.strategies._cheapest_path import cheapest
from tfgc.strategies._flat_plans import FlatPlans
from tfgc.strategies._frontier import Frontier
from tfgc.strategies._nested_plans import NestedPlans

_CANDIDATES = 128
_SLICED_CANDIDATES = 24
# Up to so many nodes the plan of `optimal` is part of the front.
_SMALL = 1000


def plan(
    graph: Graph,
    *,
    budget: int,
    positions: int = 100,
    nested: bool = True,
    slices: int = 1,
    host_budget: Any = None,
    bandwidth: Any = None,
    speed: float | None = None,
) -> Plan:
    """Return the plan of least work whose predicted peak, weights left out, is at most `budget` bytes.

    With `slices=8` segments whose nodes allow it may run in eight slices of the batch; with `host_budget="4GB"` inputs
    of segments may wait in the host's memory, where `bandwidth` and `speed` are as in `hybrid`. Neither are nested.

    Example:
        >>> import keras, tfgc
        >>> layers = [keras.layers.Dense(8, activation="gelu") for _ in range(9)]
        >>> model = keras.Sequential([keras.Input((8,)), *layers])
        >>> plans = [tfgc.plan(model, batch_size=512, budget=share) for share in ("75%", "90%")]
        >>> plans[0].outlook.overhead > plans[1].outlook.overhead > 0
        True
    """
    options = {"host_budget": host_budget, "bandwidth": bandwidth, "speed": speed}
    return frontier(graph, positions=positions, nested=nested, slices=slices, **options).within(budget)


def frontier(
    graph: Graph,
    *,
    positions: int = 100,
    nested: bool = True,
    slices: int = 1,
    host_budget: Any = None,
    bandwidth: Any = None,
    speed: float | None = None,
) -> Frontier:
    """The plans from the least peak to the plain step."""
    positions, nested = check_int("positions", positions), check_bool("nested", nested)
    slices = check_int("slices", slices)
    plain = Plan.from_cuts(graph, [], strategy="budget")
    places = _cut_places.places(graph)
    chosen = _cut_places.merged(graph, places, positions)
    options: dict[str, int] = {} if nested else {"nested": False}
    if len(chosen) < len(places):
        options["coarsened"] = len(chosen)
    most = simulator.predict(graph, plain).peak_bytes
    found = NestedPlans(graph, chosen, most, replays_again=nested)
    plans = [plain]
    for slot in _spread(found.front()):
        plans.append(Plan.from_pieces(graph, found.pieces(slot), strategy="budget", options=options))
    if len(graph) <= _SMALL:
        optimal = strategies.get("optimal")(graph)
        plans.append(dataclasses.replace(optimal, strategy="budget", options=options))
    if slices > 1:
        plans += _in_slices(graph, chosen, most, {**options, "slices": slices})
    if host_budget is not None:
        given = {"host_budget": host_budget, "bandwidth": bandwidth, "speed": speed, "slices": slices}
        front = strategies.frontier(graph, "hybrid", **given)
        plans += [dataclasses.replace(each, strategy="budget") for each in front.plans]
    elif bandwidth is not None or speed is not None:
        raise OptionError("bandwidth= and speed= are of the link to the host: say host_budget= as well")
    return Frontier.of(graph, plans)


def _in_slices(graph: Graph, places: Sequence[int], most: int, options: dict[str, int]) -> Iterator[Plan]:
    """Plans of which some segments run in slices, from the least peak to `most`."""
    least = strategies.get("optimal")(graph, slices=options["slices"])
    yield dataclasses.replace(least, strategy="budget", options=options)
    plans = FlatPlans(graph, most, places, options["slices"])
    for peak in np.geomspace(simulator.predict(graph, least).peak_bytes, most, _SLICED_CANDIDATES):
        path = cheapest(plans, int(peak))
        if path is not None:
            yield plans.plan(path, strategy="budget", options=options)


def _spread(slots: list[int]) -> list[int]:
    """At most `_CANDIDATES` of the slots, spaced by about equal ratios."""
    if len(slots) <= _CANDIDATES:
        return slots
    wanted = np.geomspace(slots[0], slots[-1], _CANDIDATES)
    return sorted({slots[i] for i in np.minimum(np.searchsorted(slots, wanted), len(slots) - 1)})
