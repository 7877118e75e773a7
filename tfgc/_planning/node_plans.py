"""Plans by the nodes of a graph, asked for as those by the calls of layers are."""

import dataclasses
import functools
from typing import Any, TypeAlias

from tfgc import strategies
from tfgc._calls.call_plans import CallPlans
from tfgc._core.graph import Graph
from tfgc._core.plan import Plan
from tfgc._planning import budget_fit
from tfgc._simulate import outlooks, simulator
from tfgc._simulate.simulator import Prediction
from tfgc.strategies import Strategy
from tfgc.strategies._frontier import Frontier


class NodePlans:
    """The plans of an annotated graph of a whole step that runs in a mode; methods are as those of `CallPlans`."""

    def __init__(self, graph: Graph, mode: str = "graph") -> None:
        self.graph, self.mode = graph, mode
        self._frontiers: dict[tuple[str, str], Frontier] = {}

    def frontier(self, strategy: str = "budget", **options: Any) -> Frontier:
        """The front that a strategy makes, once for the same options."""
        key = strategy, repr(sorted(options.items()))
        if key not in self._frontiers:
            self._frontiers[key] = strategies.frontier(self.graph, strategy, **options)
        return self._frontiers[key]

    @functools.cached_property
    def floor(self) -> tuple[int, str]:
        return outlooks.floor(self.graph)

    def least(self) -> Plan:
        return strategies.apply("optimal", self.graph.counting(whole_step=False))

    def front(self) -> list[Plan]:
        return list(self.frontier().plans)

    def fitting(self, total: int, fixed: int, strategy: Strategy = "budget", **options: Any) -> Plan:
        if strategies.has_frontier(strategy):
            return self.frontier(strategy, **options).fitting(total, fixed, self.mode)
        strategies.check_options(strategy, options, total)

        def ask(limit: int) -> Plan:
            return strategies.planned(strategy, self.graph, budget=limit, **options)

        return budget_fit.from_strategy(self.graph, ask, total, fixed, self.mode)

    def plain_bytes(self, fixed: int) -> int:
        return self.estimate(None, fixed).needed_bytes

    def estimate(self, plan: Plan | None, fixed: int) -> Prediction:
        return simulator.estimate(self.graph, plan, fixed, self.mode)

    def with_figures(self, plan: Plan) -> Plan:
        plan = dataclasses.replace(plan, batch_size=self.graph.batch_size)
        return noted(self.graph, outlooks.with_outlook(self.graph, plan))


def noted(graph: Graph, plan: Plan) -> Plan:
    """The plan, which says among its options if it is one for XLA."""
    return dataclasses.replace(plan, options={**plan.options, "mode": "xla"}) if graph.xla else plan


AnyPlans: TypeAlias = CallPlans | NodePlans
