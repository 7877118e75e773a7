"""Plans that may store checkpoints on the host, simulated, since a search says only about what they need."""

import dataclasses
from collections.abc import Iterable
from typing import TypeAlias

import numpy as np

from tfgc import strategies
from tfgc._core.graph import Graph
from tfgc._core.plan import Plan
from tfgc._errors import InfeasibleBudgetError
from tfgc._simulate import simulator
from tfgc._simulate.simulator import Prediction
from tfgc.strategies._host_memory import HostMemory
from tfgc.strategies._places import searched
from tfgc.strategies._search import LeastWork

Judged: TypeAlias = tuple[Plan, Prediction]
# So many plans near the budget are simulated.
_MOST = 40


def with_host(
    graph: Graph, host: HostMemory, positions: int, strategy: str, budget: int = 0, hidden: bool = False
) -> list[Judged]:
    """Plans that the host allows and what they need: of least peak, of about so many bytes, and the plain step.

    Args:
        graph: The graph.
        host: The host's memory.
        positions: Places at most where segments may start.
        strategy: Its name, for the plans.
        budget: Bytes on the device.
        hidden: Whether no replay may wait for what comes back from the host.
    """
    plain, optimal = Plan.from_cuts(graph, [], strategy=strategy), strategies.get("optimal")(graph)
    most = simulator.predict(graph, optimal if hidden else plain).peak_bytes
    search, coarsened = searched(graph, most, positions, host=host, hidden=hidden)
    found = LeastWork(search, most, host.budget)
    falls = found.falls()
    near = falls[np.argsort(np.abs(falls - budget), kind="stable")[:_MOST]]
    levels = {*near.tolist(), *falls[:1].tolist(), *([budget] if budget >= search.least_peak else [])}
    plans = [found.plan(level, strategy=strategy) for level in sorted(levels)]
    named = {"strategy": strategy, "options": {**host.options, **coarsened}, "link": host.link}
    plans = [dataclasses.replace(plan, **named) for plan in (*plans, optimal, plain)]
    judged = [(plan, simulator.predict(graph, plan)) for plan in plans]
    return [each for each in judged if host.budget is None or each[1].host_bytes <= host.budget]


def cheapest(judged: Iterable[Judged], budget: int) -> Plan:
    """The plan of least work within a budget; if there is none, `InfeasibleBudgetError` says the least that works."""
    ordered = sorted(judged, key=lambda pair: (pair[1].work, pair[1].peak_bytes))
    for plan, found in ordered:
        if found.peak_bytes <= budget:
            return plan
    least = min((found for _, found in ordered), key=lambda found: found.peak_bytes)
    raise InfeasibleBudgetError(budget, least.peak_bytes, least.node)
