"""Static swapping: the least peak by storing checkpoints on the host, where the copies hide behind work.

After TFLMS (Le et al., arXiv:1807.02037), which swaps tensors to the host and back by a fixed rule. Here the cuts are
chosen as well, and a checkpoint goes to the host only if its copy back takes no longer than the backward pass of the
segment after it: no replay waits. Not nested.
"""

import dataclasses
from typing import Any

from tfgc._core.graph import Graph
from tfgc._core.plan import Plan
from tfgc._errors import check_int
from tfgc._simulate import outlooks, simulator
from tfgc.strategies import _cut_places
from tfgc.strategies._frontier import Frontier
from tfgc.strategies._host_memory import HostMemory
from tfgc.strategies._host_plans import HostPlans

# Work that replays may wait for copies, as a fraction of the plain step's
_HIDDEN = 0.01


def plan(
    graph: Graph,
    *,
    host_budget: Any = None,
    bandwidth: Any = None,
    speed: float | None = None,
    positions: int = 100,
) -> Plan:
    """Return the plan of least predicted peak among those found.

    Options are those of `hybrid`.

    Example:
        >>> import keras, tfgc
        >>> layers = [keras.layers.Dense(8, activation="gelu") for _ in range(9)]
        >>> model = keras.Sequential([keras.Input((8,)), *layers])
        >>> plans = [tfgc.plan(model, 4096, strategy=name) for name in ("offload", "optimal")]
        >>> plans[0].outlook.peak_bytes < plans[1].outlook.peak_bytes
        True
    """
    host = HostMemory.of(graph, host_budget, bandwidth, speed)
    places, chosen, optimal = _cut_places.with_optimal(graph, check_int("positions", positions))
    most, (floor, _) = simulator.predict(graph, optimal).peak_bytes, outlooks.floor(graph)
    plans = _cut_places.searched(graph, most, chosen, host=True)
    found = HostPlans(plans, host, hidden=True)
    least = found.least_peak(floor, most)
    options = {**host.options, **({"coarsened": len(chosen)} if len(chosen) < len(places) else {}), **plans.searched}

    def held_to(each: Plan) -> Plan | None:
        each = dataclasses.replace(each, strategy="offload", options=options, link=host.link)
        return each if host.allows(graph, each) and _hides(graph, each) else None

    candidates = [held_to(optimal)]
    for budget in (least, int(1.1 * least), int(1.25 * least)):
        path = found.cheapest(budget)
        if path is None:
            continue
        each = held_to(plans.plan(path, strategy="offload"))
        candidates.append(each)
        if each is not None and simulator.predict(graph, each).peak_bytes <= budget:
            break  # Met: a larger budget gains nothing.
    return Frontier(graph, [each for each in candidates if each is not None]).plans[0]


def _hides(graph: Graph, plan: Plan) -> bool:
    """Whether replays wait for next to nothing."""
    found = simulator.predict(graph, plan)
    at_once = simulator.predict(graph, dataclasses.replace(plan, link=None))
    return found.work - at_once.work <= _HIDDEN * found.plain_work
