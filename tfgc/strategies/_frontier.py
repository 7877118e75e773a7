"""The Pareto front of a graph's plans: no other plan known has both a lower peak and less work."""

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

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

    mode = "graph"  # in which plans are judged, as in `simulator.predict`

    def __init__(
        self, graph: Graph, plans: Iterable[Plan], more: Callable[[int], Iterable[Plan]] | None = None, up_to: float = 0
    ) -> None:
        self.graph: Graph = graph
        self.more: Callable[[int], Iterable[Plan]] | None = more
        self.up_to: float = up_to
        self.given: list[Plan] = list(plans)
        self.front: list[Judged] = []
        self._steps: dict[int, tuple[Plan, Prediction]] = {}  # by id
        self._add(self.judged(self.given))
        self._more = more  # until it is called
        self._below = int(up_to * self.front[0][1].peak_bytes)

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans of the front."""
        self._add_more()
        return self.plans_so_far

    @property
    def plans_so_far(self) -> tuple[Plan, ...]:
        """Those of them that are made already."""
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
            judged, self._more = self.judged(list(self._more(below))), None
            self._add([pair for pair in judged if pair[1].peak_bytes < below and pair[1].work >= least_work])

    def judged(self, plans: list[Plan]) -> list[Judged]:
        """Plans, each with its step."""
        return [(plan, simulator.predict(self.graph, plan, self.mode)) for plan in plans]

    def _add(self, judged: list[Judged]) -> None:
        self.front = self.best([*self.front, *judged])

    def best(self, judged: list[Judged]) -> list[Judged]:
        """Those that no other one beats, by ascending peaks."""
        found: list[Judged] = []
        for pair in sorted(judged, key=lambda pair: (pair[1].peak_bytes, pair[1].work)):
            if not found or self.work(pair) < self.work(found[-1]):
                found.append(pair)
        return found

    def work(self, judged: Judged) -> Any:
        """What a plan is compared by."""
        return judged[1].work

    def choices(self) -> list[Judged]:
        """What may fit, from the least work on."""
        return self.front[::-1]

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

    def fitting(self, total: int, fixed: int) -> Plan:
        """The plan of least work whose whole step needs at most `total` bytes, of which `fixed` are weights and slots.

        If there is none, an `InfeasibleBudgetError` names the smallest budget that works.
        """
        room = total - fixed
        found = self._fitting(room)
        if self._more is not None and (found is None or found[1].work > self._work_below()):
            self._add_more()
            found = self._fitting(room)
        if found is not None:
            return found[0]
        choices = sorted(self.choices(), key=lambda pair: pair[1].peak_bytes)
        least = self._step(choices[0][0])
        for plan, found in choices:
            if found.peak_bytes >= least.needed_bytes:
                break
            least = min(least, self._step(plan), key=lambda step: step.needed_bytes)
        raise InfeasibleBudgetError(total, least.needed_bytes + fixed, least.node)

    def _fitting(self, room: int) -> Judged | None:
        for plan, found in self.choices():
            if found.peak_bytes <= room and simulator.fits(self.graph, plan, room, self.mode):
                return plan, found
        return None

    def _step(self, plan: Plan) -> Prediction:
        """The whole step by a plan, without weights and optimizer slots; simulated once."""
        if id(plan) not in self._steps:
            self._steps[id(plan)] = plan, simulator.estimate(self.graph, plan, 0, self.mode)
        return self._steps[id(plan)][1]
