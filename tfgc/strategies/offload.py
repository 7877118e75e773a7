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
        >>> plans[0].outlook.peak_bytes <= plans[1].outlook.peak_bytes
        True
    """
    host, positions = HostMemory.of(graph, host_budget, bandwidth, speed), check_int("positions", positions)
    candidates = list[Plan]()
    # With places among small nodes the search is less like what the simulator says than with half as many.
    for count in (positions, max(1, positions // 2)):
        places, chosen, optimal = _cut_places.with_optimal(graph, count)
        most, (floor, _) = simulator.predict(graph, optimal).peak_bytes, outlooks.floor(graph)
        plans = _cut_places.searched(graph, most, chosen, host=True)
        found = HostPlans(plans, host, hidden=True)
        least = found.least_peak(floor, most)
        coarsened = {"coarsened": len(chosen)} if len(chosen) < len(places) else {}
        named = {"strategy": "offload", "options": {**host.options, **coarsened, **plans.searched}, "link": host.link}
        made = [(most, optimal)]
        for budget in (least, int(1.1 * least), int(1.25 * least)):
            if (path := found.cheapest(budget)) is not None:
                made.append((budget, plans.plan(path, strategy="offload")))
        for budget, each in made:
            each = dataclasses.replace(each, **named)
            if host.allows(graph, each) and _hides(graph, each):
                candidates.append(each)
                if budget < most and simulator.predict(graph, each).peak_bytes <= budget:
                    break  # Met: a larger budget gains nothing.
        if not coarsened:
            break
    return Frontier(graph, candidates).plans[0]


def _hides(graph: Graph, plan: Plan) -> bool:
    """Whether replays wait for next to nothing."""
    found = simulator.predict(graph, plan)
    at_once = simulator.predict(graph, dataclasses.replace(plan, link=None))
    return found.work - at_once.work <= _HIDDEN * found.plain_work
