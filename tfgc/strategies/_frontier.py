"""The Pareto front of a graph's plans: no other plan known has both a lower peak and less work."""

from collections.abc import Iterable, Sequence
from typing import Self

from tfgc._core.graph import Graph
from tfgc._core.plan import Plan
from tfgc._errors import InfeasibleBudgetError
from tfgc._simulate import simulator
from tfgc._simulate.simulator import Prediction, allocated_bytes


class Frontier:
    """Plans of one graph, from the least peak to the plain step; each next one does less work.

    Attributes:
        plans: The plans.
        peaks: The peak of each in bytes of buffers, as `graph` counts them: activations, and gradients of weights if it
            counts the whole step. Weights and optimizer slots are left out.
    """

    def __init__(self, graph: Graph, plans: Sequence[Plan], peaks: Sequence[int]) -> None:
        self.plans: tuple[Plan, ...] = tuple(plans)
        self.peaks: tuple[int, ...] = tuple(peaks)
        self._graph = graph
        self._steps: dict[tuple[int, str], Prediction] = {}

    @classmethod
    def of(cls, graph: Graph, plans: Iterable[Plan]) -> Self:
        """The front among `plans`, each simulated once."""
        predicted = [(simulator.predict(graph, plan), plan) for plan in plans]
        chosen, peaks, least_work = [], [], float("inf")
        for prediction, plan in sorted(predicted, key=lambda pair: (pair[0].peak_bytes, pair[0].work)):
            if prediction.work < least_work:
                chosen.append(plan)
                peaks.append(prediction.peak_bytes)
                least_work = prediction.work
        return cls(graph, chosen, peaks)

    def within(self, budget: int) -> Plan:
        """The plan of least work whose peak, in bytes of buffers, is at most `budget`.

        Raises:
            InfeasibleBudgetError: If there is none; it names the smallest budget that works.
        """
        for peak, plan in zip(reversed(self.peaks), reversed(self.plans)):
            if peak <= budget:
                return plan
        node = simulator.predict(self._graph, self.plans[0]).node
        raise InfeasibleBudgetError(budget, self.peaks[0], node)

    def fitting(self, total: int, fixed: int, mode: str = "graph") -> Plan:
        """The plan of least work whose whole step TensorFlow's allocator serves with `total` bytes.

        Args:
            total: The budget in bytes, as `Prediction.needed_bytes` counts them.
            fixed: Bytes of weights and optimizer slots.
            mode: As for `tfgc.estimate`.

        Raises:
            InfeasibleBudgetError: If there is none; it names the smallest budget that works.
        """
        room = total - fixed
        for i in reversed(range(len(self.plans))):
            if self.peaks[i] <= room and self._step(i, mode).needed_bytes <= room:
                return self.plans[i]
        least = self._step(0, mode)
        for i, peak in enumerate(self.peaks):
            if peak >= least.needed_bytes:
                break
            least = min(least, self._step(i, mode), key=lambda step: step.needed_bytes)
        raise InfeasibleBudgetError(total, least.needed_bytes + fixed, least.node)

    def at_ratio(self, ratio: float, *others: Plan) -> Plan:
        """The plan of least work at this ratio of the bytes that the allocator hands out for the plain step.

        Weights and optimizer slots are left out. `others` are plans to choose from besides those of the front. If no
        plan reaches the ratio, the one that the allocator serves with the least is returned.
        """
        plain = simulator.estimate(self._graph, Plan.from_cuts(self._graph, [], strategy="keep_all"), 0)
        most = ratio * allocated_bytes(plain)
        steps = [self._step(i) for i in range(len(self.plans))]
        steps += [simulator.estimate(self._graph, plan, 0) for plan in others]
        choices = list(zip(steps, (*self.plans, *others)))
        reaching = [choice for choice in choices if allocated_bytes(choice[0]) <= most]
        if reaching:
            return min(reaching, key=lambda choice: choice[0].work)[1]
        return min(choices, key=lambda choice: (allocated_bytes(choice[0]), choice[0].work))[1]

    def _step(self, i: int, mode: str = "graph") -> Prediction:
        """The whole step by a plan, without weights and optimizer slots; simulated once."""
        if (i, mode) not in self._steps:
            self._steps[i, mode] = simulator.estimate(self._graph, self.plans[i], 0, mode)
        return self._steps[i, mode]
