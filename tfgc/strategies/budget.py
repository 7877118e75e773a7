"""The least work under a byte budget, nested replays allowed (`nested=False`: each node runs twice at most).

Dynamic programming after rotor (Beaumont et al., arXiv:1911.13214), for any graph in its fixed order; see `_search`.
Plans with nested replays, O(p^3) for p positions, go below the least peak of one replay, and gain next to nothing far
above it. So in graphs of many positions they are made for budgets up to 1.3 times that peak alone.

Exact for graphs of few positions and small byte counts. Segments of nested plans start at `positions` places at most,
those of others at four times as many, and at fewer if there are so many of them that planning would take long:
neighbours are merged first, where the cut between them is large. The plan's options then say `coarsened`.
"""

import dataclasses
from typing import Any

from tfgc import strategies
from tfgc._core.graph import Graph
from tfgc._core.plan import Plan
from tfgc._errors import OptionError, check_bool, check_int
from tfgc._simulate import simulator
from tfgc.strategies import _judged
from tfgc.strategies._host_memory import HostMemory
from tfgc.strategies._places import searched
from tfgc.strategies._search import LeastWork

# Of so many positions nested plans are always made; of more, up to this multiple of the least peak without nesting.
_FEW, _NESTED_UP_TO = 40, 1.3


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
    positions, nested = check_int("positions", positions), check_bool("nested", nested)
    given = {} if nested else {"nested": False}
    plain, optimal = Plan.from_cuts(graph, [], strategy="budget"), strategies.get("optimal")(graph)
    plans = [plain, dataclasses.replace(optimal, strategy="budget", options={**given, **optimal.options})]
    most, least = (simulator.predict(graph, plan).peak_bytes for plan in plans)

    def add(limit: int, most_places: int, is_nested: bool) -> None:
        search, options = searched(graph, limit, most_places, nested=is_nested)
        if search.least_peak <= limit:
            best = max(budget, search.least_peak)
            plans.append(LeastWork(search, best).plan(best, strategy="budget", options={**given, **options}))

    if least <= budget < most:
        add(budget, 4 * positions, is_nested=False)
    if nested and (min(positions, len(graph)) <= _FEW or budget < _NESTED_UP_TO * least) and budget < most:
        add(max(budget, least), positions, is_nested=True)
    judged = [(plan, simulator.predict(graph, plan)) for plan in plans]
    if host_budget is not None:
        host = HostMemory.of(graph, host_budget, bandwidth, speed)
        judged += _judged.with_host(graph, host, _FEW, "budget", budget)
    elif bandwidth is not None or speed is not None:
        raise OptionError("bandwidth= and speed= are of the link to the host: say host_budget= as well")
    return _judged.cheapest(judged, budget)
