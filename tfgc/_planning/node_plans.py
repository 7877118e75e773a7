"""Plans by the nodes of a graph, asked for as those of a step that is traced are, and which of them a budget buys.

To every strategy a budget means the whole step, as TensorFlow's allocator serves it. That is
`Prediction.needed_bytes`: weights, optimizer slots, gradients and activations, in the chunks that the allocator
hands out. Strategies count buffers, since their size in chunks is known only for a whole plan. So a strategy is
asked at a fixed series of budgets in buffers, which depends on the graph alone, and the model of the allocator runs
each plan, from the largest budget that may fit down, until one fits. Since the series is the same for all budgets, a
larger budget never gives a slower plan, if that holds for the strategy.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

from tfgc import strategies
from tfgc._core.graph import Graph
from tfgc._core.plan import Plan
from tfgc._errors import InfeasibleBudgetError
from tfgc._simulate import outlooks, simulator
from tfgc._simulate.simulator import Prediction
from tfgc.strategies._compiled_frontier import CompiledFrontier
from tfgc.strategies._frontier import Frontier

# Each budget of the series is this part of the one before, 4 % less. A finer one would ask `ilp`, which takes
# seconds or minutes for each answer, more often.
_STEP = 2 ** (-1 / 16)


class NodePlans:
    """The plans of an annotated graph of a whole step that runs in a mode; methods are as those of `StepAhead`."""

    def __init__(self, graph: Graph, mode: str = "graph") -> None:
        if mode == "compiled":  # Whatever the optimizer, gradients are applied in turn when all are there.
            graph = dataclasses.replace(graph, early_update=0.0, table_update=0.0, late_updates=False)
        self.graph, self.mode = graph, mode
        self._frontiers: dict[tuple[str, str], Frontier] = {}

    def frontier(self, strategy: str = "budget", **options: Any) -> Frontier:
        """The front that a strategy makes, once for the same options."""
        key = strategy, repr(sorted(options.items()))
        if key not in self._frontiers:
            front = strategies.frontier(self.graph, strategy, **options)
            self._frontiers[key] = CompiledFrontier(front, self._others(strategy)) if self.mode == "compiled" else front
        return self._frontiers[key]

    def _others(self, strategy: str) -> Iterator[Plan]:
        """Plans by simple rules, as if a strategy had made them; which are best in graphs says little here."""
        for text in ("speed", "articulation", "sqrt", "uniform:2", "uniform:3", "uniform:4"):
            name, options = strategies.named(text)
            if options.get("segments", 1) <= len(self.graph):
                plan = strategies.planned(name, self.graph, **options)
                yield dataclasses.replace(plan, strategy=strategy, options={})

    @functools.cached_property
    def floor(self) -> tuple[int, str]:
        return outlooks.floor(self.graph)

    def least(self) -> Plan:
        return strategies.apply("optimal", self.graph.counting(whole_step=False))

    def front(self) -> list[Plan]:
        return list(self.frontier().plans)

    def fitting(self, total: int, fixed: int, strategy: strategies.Strategy = "budget", **options: Any) -> Plan:
        """The plan of a strategy at the largest budget of its front or the series at which it fits in `total` bytes."""
        if strategies.has_frontier(strategy):
            return self.frontier(strategy, **options).fitting(total, fixed)
        strategies.check_options(strategy, options, total)

        @functools.cache
        def made(budget: int) -> tuple[Plan, Prediction]:
            """The plan at a budget in buffers, without the `fixed` bytes, and its step."""
            plan = strategies.planned(strategy, self.graph, budget=budget, **options)
            return plan, self.estimate(plan, fixed)

        def need(budget: int) -> int:
            """The least budget of the whole step in which the plan of a budget is offered."""
            return max(made(budget)[1].needed_bytes, budget + fixed)

        budgets = self._series(made)
        for budget in budgets:
            if budget + fixed <= total and need(budget) <= total:
                return made(budget)[0]
        least = budgets[-1]
        for budget in reversed(budgets[:-1]):
            if budget + fixed >= need(least):
                break
            least = min(least, budget, key=need)
        raise InfeasibleBudgetError(total, need(least), made(least)[1].node)

    def _series(self, ask: Callable[[int], Any]) -> list[int]:
        """Falling budgets in buffers, from the plain step's peak to the least that a strategy takes."""
        least, _ = self.floor
        try:
            ask(max(least - 1, 1))
        except InfeasibleBudgetError as error:
            least = error.least
        budgets, budget = list[int](), outlooks.plain_peak(self.graph)
        while budget > least:
            budgets.append(budget)
            budget = int(budget * _STEP)
        return [*budgets, least]

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
