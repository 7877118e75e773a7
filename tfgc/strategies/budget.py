"""The least work under a byte budget, nested replays allowed (`nested=False`: each node runs twice at most).

One Pareto front of plans is made for all budgets, each judged by the simulator, and a budget picks from it: a larger
budget never gives a slower plan, a smaller one never a higher peak. Plans without nesting are paths through states
(`_flat_plans`), found for all budgets at once by dynamic programming over memory (`_flat_paths`). Those with nested
replays are found by dynamic programming after rotor (Beaumont et al., arXiv:1911.13214), for any graph in its fixed
order (`_nested_plans`), O(p^3) for p positions. They go below the least peak of one replay, and gain next to nothing
far above it. So in graphs of many positions they are made for budgets up to 1.3 times that peak alone.

Exact for graphs of few positions and small byte counts. Segments of nested plans start at `positions` places at most,
those of others at four times as many, and at fewer if a graph has so many states that planning would take long:
neighbours are merged first, where the cut between them is large. The plan's options then say `coarsened`, and its
outlook bounds the gap: no plan of that peak has less overhead than `least_overhead`. Where `_flat_plans` affords a part
of the states alone, they say which part was `searched`, and nested plans start segments at a dozen places.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from tfgc import strategies
from tfgc._core.graph import Graph
from tfgc._core.plan import Plan
from tfgc._errors import OptionError, check_bool, check_int
from tfgc._simulate import outlooks
from tfgc.strategies import _cut_places
from tfgc.strategies._flat_paths import front, spread
from tfgc.strategies._flat_plans import FlatPlans
from tfgc.strategies._frontier import Frontier
from tfgc.strategies._nested_plans import NestedPlans, TooManyPasses

# Plans that are judged: over all of the front and of its lower end.
_CANDIDATES, _LOW_CANDIDATES = 128, 32
# Of so many positions nested plans are always made; of more, up to this multiple of the least peak without nesting.
_FEW, _NESTED_UP_TO = 40, 1.3
# Up to so many nodes the plan of `optimal` is part of the front.
_SMALL = 1000


def plan(
    graph: Graph,
    *,
    budget: int,
    positions: int = 100,
    nested: bool = True,
    host_budget: Any = None,
    bandwidth: Any = None,
    speed: float | None = None,
) -> Plan:
    """Return the plan of least work whose predicted peak, weights left out, is at most `budget` bytes.

    With `host_budget="4GB"` inputs of segments may wait in the host's memory, where `bandwidth` and `speed` are as in
    `hybrid`. Such plans are not nested.

    Example:
        >>> import keras, tfgc
        >>> layers = [keras.layers.Dense(8, activation="gelu") for _ in range(9)]
        >>> model = keras.Sequential([keras.Input((8,)), *layers])
        >>> plans = [tfgc.plan(model, batch_size=512, budget=share) for share in ("75%", "90%")]
        >>> plans[0].outlook.overhead > plans[1].outlook.overhead > 0
        True
    """
    options = {"host_budget": host_budget, "bandwidth": bandwidth, "speed": speed}
    return frontier(graph, positions=positions, nested=nested, **options).within(budget)


def frontier(
    graph: Graph,
    *,
    positions: int = 100,
    nested: bool = True,
    host_budget: Any = None,
    bandwidth: Any = None,
    speed: float | None = None,
) -> Frontier:
    """The plans from the least peak to the plain step."""
    positions, nested = check_int("positions", positions), check_bool("nested", nested)
    plain, most = Plan.from_cuts(graph, [], strategy="budget"), outlooks.plain_peak(graph)
    places = _cut_places.places(graph)
    starts = _cut_places.affordable(graph, places, most, 4 * positions)
    flat = FlatPlans(graph, most, starts)
    chosen = _cut_places.merged(graph, _cut_places.dozen(graph, places) if flat.searched else places, positions)
    given = {**({} if nested else {"nested": False}), **flat.searched}

    def coarsened(at: Sequence[int]) -> dict[str, Any]:
        return {**given, "coarsened": len(at)} if len(at) < len(places) else given

    of_flat = coarsened(starts)
    plans = [plain, *_without_nesting(flat, most, of_flat)]
    if len(graph) <= _SMALL:
        optimal = strategies.get("optimal")(graph)
        plans.append(dataclasses.replace(optimal, strategy="budget", options=of_flat))
    options = coarsened(chosen)
    if host_budget is not None:
        of_host = {"host_budget": host_budget, "bandwidth": bandwidth, "speed": speed}
        on_host = strategies.frontier(graph, "hybrid", **of_host).plans
        plans += [dataclasses.replace(each, strategy="budget") for each in on_host]
    elif bandwidth is not None or speed is not None:
        raise OptionError("bandwidth= and speed= are of the link to the host: say host_budget= as well")
    if not nested:
        return Frontier(graph, plans)
    if len(chosen) <= _FEW and not flat.searched:
        return Frontier(graph, [*plans, *_nested(graph, chosen, most, options)])
    return Frontier(graph, plans, lambda below: _nested(graph, chosen, min(below, most), options), _NESTED_UP_TO)


def _without_nesting(plans: FlatPlans, most: int, options: dict[str, Any]) -> Iterator[Plan]:
    """Plans from the least peak to `most`; the lower end once more, where memory is counted in smaller slots."""
    paths = front(plans, most)
    if paths:
        low = min(most, 2 * min(map(plans.peak, paths)))
        for path in spread(paths, _CANDIDATES) + spread(front(plans, low), _LOW_CANDIDATES):
            yield plans.plan(path, strategy="budget", options=options)


def _nested(graph: Graph, places: Sequence[int], most: int, options: dict[str, Any]) -> Iterator[Plan]:
    """Plans with nested replays, from the least peak to `most`."""
    try:
        found = NestedPlans(graph, places, most)
    except TooManyPasses:
        fewer = _cut_places.merged(graph, places, len(places) // 2)
        yield from _nested(graph, fewer, most, options | {"coarsened": len(fewer)})
        return
    for slot in spread(found.front(), _CANDIDATES):
        yield Plan.from_pieces(graph, found.pieces(slot), strategy="budget", options=options)
