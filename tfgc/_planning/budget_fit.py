"""Which plan a budget buys. To every strategy a budget means the whole step, as TensorFlow's allocator serves it.

That is `Prediction.needed_bytes`: weights, optimizer slots, gradients and activations, in the chunks that the allocator
hands out. Strategies count buffers, since their size in chunks is known only for a whole plan. So a strategy is
asked at a fixed series of budgets in buffers, which depends on the graph alone, and the model of the allocator runs
each plan, from the largest budget that may fit down, until one fits. Since the series is the same for all budgets, a
larger budget never gives a slower plan, if that holds for the strategy.
"""

import functools
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

    `ask` maps a budget in buffers, without the `fixed` bytes of weights and slots, to a plan; it raises
    `InfeasibleBudgetError` where that is too little.

    Raises:
        InfeasibleBudgetError: If none fits; it names the least budget that one fits in.
    """
    budgets = _series(graph, ask)

    @functools.cache
    def made(budget: int) -> tuple[Plan, Prediction]:
        plan = ask(budget)
        return plan, simulator.estimate(graph, plan, fixed, mode)

    def need(budget: int) -> int:
        """The least budget of the whole step in which the plan of a budget is offered."""
        return max(made(budget)[1].needed_bytes, budget + fixed)

    for budget in budgets:
        if budget + fixed <= total and need(budget) <= total:
            return made(budget)[0]
    least = budgets[-1]
    for budget in reversed(budgets[:-1]):
        if budget + fixed >= need(least):
            break
        least = min(least, budget, key=need)
    raise InfeasibleBudgetError(total, need(least), made(least)[1].node)


def _series(graph: Graph, ask: Callable[[int], Plan]) -> list[int]:
    """Falling budgets in buffers, from the plain step's peak to the least that the strategy takes."""
    least, _ = outlooks.floor(graph)
    try:
        ask(max(least - 1, 1))
    except InfeasibleBudgetError as error:
        least = error.least
    budgets, budget = list[int](), outlooks.plain_peak(graph)
    while budget > least:
        budgets.append(budget)
        budget = int(budget * _STEP)
    return [*budgets, least]
