"""Which plan a budget buys. To every strategy a budget means the whole step, as TensorFlow's allocator serves it.

That is `Prediction.needed_bytes`: weights, optimizer slots, gradients and activations, in the chunks that the allocator
hands out. Strategies count buffers, since their size in chunks is known only for a whole plan. So a strategy is
asked at a fixed series of budgets in buffers, which depends on the graph alone, and the model of the allocator runs
each plan, from the largest budget that may fit down, until one fits. Since the series is the same for all budgets, a
larger budget never gives a slower plan, if that holds for the strategy.
"""

from collections.abc import Callable

from tfgc._core.graph import Graph
from tfgc._core.plan import Plan
from tfgc._errors import InfeasibleBudgetError
from tfgc._simulate import outlooks, simulator
from tfgc._simulate.simulator import Prediction

# Each budget of the series is this part of the one before, 4 % less. A finer one would ask `ilp`, which takes
# seconds or minutes for each answer, more often.
_STEP = 2 ** (-1 / 16)


def from_strategy(graph: Graph, ask: Callable[[int], Plan], total: int, fixed: int, mode: str = "graph") -> Plan:
    """The plan that a strategy makes at the largest budget of the series at which it fits in `total` bytes.

    Args:
        graph: A `Graph` of the whole step.
        total: The budget.
        fixed: Bytes of weights and optimizer slots.
        ask: Function from a budget in buffers, weights and slots left out, to a plan. It raises
            `InfeasibleBudgetError` where that is too little.
        mode: As for `tfgc.estimate`.

    Raises:
        InfeasibleBudgetError: If none fits; it names the least budget that one fits in.
    """
    series = _Series(graph, ask, fixed, mode)
    fitting = (i for i, budget in enumerate(series.budgets) if budget + fixed <= total and series.need(i) <= total)
    found = next(fitting, None)
    if found is not None:
        return series.plans[found]
    least = len(series.budgets) - 1
    for i in reversed(range(least)):
        if series.budgets[i] + fixed >= series.need(least):
            break
        least = min(least, i, key=series.need)
    raise InfeasibleBudgetError(total, series.need(least), series.steps[least].node)


class _Series:
    """Falling budgets in buffers, from the plain step's peak to the least that the strategy takes, and their plans."""

    def __init__(self, graph: Graph, ask: Callable[[int], Plan], fixed: int, mode: str) -> None:
        self._graph, self._ask, self._fixed, self._mode = graph, ask, fixed, mode
        self.plans: dict[int, Plan] = {}
        self.steps: dict[int, Prediction] = {}
        baseline = simulator.predict(graph, Plan.from_cuts(graph, [], strategy="keep_all")).peak_bytes
        least, _ = outlooks.floor(graph)
        try:
            ask(max(least - 1, 1))
        except InfeasibleBudgetError as error:
            least = error.least
        self.budgets = [least]
        budget = baseline
        while budget > least:
            self.budgets.insert(-1, budget)
            budget = int(budget * _STEP)

    def need(self, i: int) -> int:
        """The least budget of the whole step in which the plan of the i-th budget is offered."""
        if i not in self.plans:
            self.plans[i] = self._ask(self.budgets[i])
            self.steps[i] = simulator.estimate(self._graph, self.plans[i], self._fixed, self._mode)
        return max(self.steps[i].needed_bytes, self.budgets[i] + self._fixed)
