"""The least work under a byte budget, nested replays allowed (`nested=False`: each node runs twice at most).

Dynamic programming after rotor (Beaumont et al., arXiv:1911.13214), for any graph in its fixed
order; see `_nested_plans`. One front of plans is made for all budgets, each judged by the
simulator, and a budget picks from it: a larger budget never gives a slower plan, a smaller one never
a higher peak. Exact for graphs of few positions and small byte counts. Above `positions` places
to cut, neighbours are merged first, where the cut between them is large; the plan's options then say
`coarsened`, and its outlook bounds the gap: no plan of that peak has less overhead than
`least_overhead`. O(p^3) for p positions.
"""

import dataclasses

import numpy as np

from tfgc import strategies
from tfgc._core.buffers import Buffers
from tfgc._core.plan import Plan
from tfgc._errors import InfeasibleBudgetError, check_bool, check_int
from tfgc._simulate import simulator
from tfgc.strategies import _nested_plans

_CANDIDATES = 128
# Up to so many nodes `optimal` takes seconds; its plan, cut anywhere, is then part of the front.
_SMALL = 1000


def plan(graph, *, budget, positions=100, nested=True):
    """Return the plan of least work whose predicted peak, weights left out, is at most `budget` bytes.

    Example:
        >>> import keras, tfgc
        >>> layers = [keras.layers.Dense(8, activation="gelu") for _ in range(9)]
        >>> model = keras.Sequential([keras.Input((8,)), *layers])
        >>> plans = [tfgc.plan(model, batch_size=512, budget=share) for share in ("75%", "90%")]
        >>> plans[0].outlook.overhead > plans[1].outlook.overhead > 0
        True
    """
    plans = front(graph, positions=positions, nested=nested)
    fitting = [(peak, plan) for peak, plan in plans if peak <= budget]
    if not fitting:
        peak, least = plans[0]
        raise InfeasibleBudgetError(budget, peak, simulator.predict(graph, least).node)
    return fitting[-1][1]


def front(graph, *, positions=100, nested=True):
    """Pairs (peak, plan), from the least peak to the plain step: each next one does less work."""
    positions, nested = check_int("positions", positions), check_bool("nested", nested)
    buffers = Buffers.of(graph)
    plain = Plan.from_cuts(graph, [], strategy="budget")
    plans = [plain]
    chosen = _merged(graph, buffers, positions)
    most = simulator.predict(graph, plain).peak_bytes
    passes = _nested_plans.Passes(graph, chosen, most, replays_again=nested)
    options = {} if nested else {"nested": False}
    if len(chosen) < len(_places(graph, buffers)):
        options["coarsened"] = len(chosen)
    for slot in _spread(passes.front()):
        plans.append(Plan.from_pieces(graph, passes.pieces(slot), strategy="budget", options=options))
    if len(graph) <= _SMALL:
        best = strategies.get("optimal")(graph)
        plans.append(dataclasses.replace(best, strategy="budget", options=options))
    with_outlook = [(p.peak_bytes, p.work, plan) for plan in plans for p in [simulator.predict(graph, plan)]]
    best, least = [], float("inf")
    for peak, work, plan in sorted(with_outlook, key=lambda x: x[:2]):
        if work < least:
            best.append((peak, plan))
            least = work
    return best


def _places(graph, buffers):
    """Positions where a segment may start: not between a node and one that writes over its output."""
    return [p for p in range(len(graph)) if not buffers.takes[p]]


def _merged(graph, buffers, limit):
    """At most `limit` places, among them 0.

    One after the other that place goes whose two neighbours keep least for the size of the cut between
    them, so that places with a small cut stay, and none of what is left is much larger than the rest.
    """
    places = _places(graph, buffers)
    kept = [1 + sum(buffers.size[x] for x in numbers) for numbers in buffers.keeps]
    share = np.concatenate([[0], np.cumsum(np.add(kept, buffers.internal))]).astype(float)
    ends = np.array([*places, len(graph)])
    while len(ends) - 1 > limit:
        joined = (share[ends[2:]] - share[ends[:-2]]) / (1 + np.take(graph.cut_bytes, ends[1:-1]))
        ends = np.delete(ends, 1 + int(joined.argmin()))
    return [int(place) for place in ends[:-1]]


def _spread(slots):
    """At most `_CANDIDATES` of the slots, by about equal ratios."""
    if len(slots) <= _CANDIDATES:
        return slots
    wanted = np.geomspace(slots[0], slots[-1], _CANDIDATES)
    return sorted({slots[i] for i in np.minimum(np.searchsorted(slots, wanted), len(slots) - 1)})
