"""The Pareto front of a graph's plans: no other plan known has both a lower peak and less work."""

from collections.abc import Callable, Iterable
from typing import TypeAlias

from tfgc._core.graph import Graph
from tfgc._core.plan import Plan
from tfgc._errors import InfeasibleBudgetError
from tfgc._simulate import simulator
from tfgc._simulate.simulator import Prediction

Judged: TypeAlias = tuple[Plan, Prediction]


class Frontier:
    """Plans of one graph, from the least peak to the plain step; each next one does less work.

    `more` makes further plans below a number of bytes, which takes time, so that it is called when they are wanted;
    `up_to` is that number as a multiple of the least peak of `plans`. Only further plans with a lower peak count, and
    with no less work than the best of `plans` has there. So they change nothing for larger budgets.
    """

    def __init__(
        self, graph: Graph, plans: Iterable[Plan], more: Callable[[int], Iterable[Plan]] | None = None, up_to: float = 0
    ) -> None:
        self.graph: Graph = graph
        self.front: list[Judged] = []
        self._add(self._judged(plans))
        self._more = more  # until it is called
        self._below = int(up_to * self.front[0][1].peak_bytes)

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans of the front."""
        self._add_more()
        return tuple(plan for plan, _ in self.front)

    @property
    def peaks(self) -> tuple[int, ...]:
        """The peak of each in bytes of buffers, as the graph counts them; weights and optimizer slots are left out."""
        self._add_more()
        return tuple(found.peak_bytes for _, found in self.front)

    def _add_more(self) -> None:
        """Add the further plans, once."""
        if self._more is not None:
            below, least_work = self._below, self._work_below()
            judged, self._more = self._judged(self._more(below)), None
            self._add([pair for pair in judged if pair[1].peak_bytes < below and pair[1].work >= least_work])

    def _judged(self, plans: Iterable[Plan]) -> list[Judged]:
        """Plans, each with its step."""
        return [(plan, simulator.predict(self.graph, plan)) for plan in plans]

    def _add(self, judged: list[Judged]) -> None:
        """Add those that no other one beats, by ascending peaks."""
        pairs = sorted([*self.front, *judged], key=lambda pair: (pair[1].peak_bytes, pair[1].work))
        self.front = []
        for pair in pairs:
            if not self.front or pair[1].work < self.front[-1][1].work:
                self.front.append(pair)

    def _work_below(self) -> float:
        """The least work of a plan whose peak is at most `below`."""
        return min((found.work for _, found in self.front if found.peak_bytes <= self._below), default=0.0)

    def within(self, budget: int) -> Plan:
        """The plan of least work whose peak, in bytes of buffers, is at most `budget`.

        If there is none, an `InfeasibleBudgetError` names the smallest budget that works.
        """
        if budget < self._below:
            self._add_more()
        for plan, found in reversed(self.front):
            if found.peak_bytes <= budget:
                return plan
        least = self.front[0][1]
        raise InfeasibleBudgetError(budget, least.peak_bytes, least.node)
