"""The least work under a byte budget without nesting, by integer programming.

After Checkmate (Jain et al. 2020, arXiv:1910.02653), over the plans that tfgc runs: kept and recomputed segments of the
graph's order. A path through the states of `_flat_plans` is chosen, with the bytes held along it; each step of the path
must fit. Solved by HiGHS through SciPy under a time limit. Exact for the blocks of one call if it ends in time.
"""

import dataclasses
import numbers
from typing import Any

import numpy as np

from tfgc import strategies
from tfgc._core.graph import Graph
from tfgc._core.plan import Plan
from tfgc._errors import InfeasibleBudgetError, OptionError, TfgcError
from tfgc._simulate import simulator
from tfgc.strategies import _cut_places
from tfgc.strategies._flat_paths import least_peak
from tfgc.strategies._flat_plans import FlatPlans, Path, Steps


def plan(graph: Graph, *, budget: int, time_limit: float = 60) -> Plan:
    """Return the plan of least work under `budget` bytes, weights left out.

    Each solution is searched for at most `time_limit` seconds.

    Example:
        >>> import keras, tfgc
        >>> layers = [keras.layers.Dense(64, activation="gelu") for _ in range(4)]
        >>> model = keras.Sequential([keras.Input((64,)), *layers])
        >>> plan = tfgc.plan(model, 4096, strategy="ilp", budget="85%", time_limit=2)
        >>> plan.outlook.needed_bytes <= plan.outlook.budget_bytes
        True
    """
    if isinstance(time_limit, bool) or not isinstance(time_limit, numbers.Real) or not time_limit > 0:
        raise OptionError(f"time_limit={time_limit!r}: must be a number of seconds above 0")
    try:
        from scipy import optimize, sparse
    except ImportError as error:
        raise TfgcError('strategy "ilp" needs SciPy: pip install "tfgc[ilp]"') from error
    plans = _cut_places.searched(graph, budget, _cut_places.places(graph))
    least = least_peak(plans)
    if least is None:
        optimal = strategies.get("optimal")(graph)
        prediction = simulator.predict(graph, optimal)
        if prediction.peak_bytes > budget:
            raise InfeasibleBudgetError(budget, prediction.peak_bytes, prediction.node)
        return dataclasses.replace(optimal, strategy="ilp", options={"gap": None, **optimal.options})
    path, gap = _solved(optimize, sparse, plans, time_limit)
    return plans.plan(path or least, strategy="ilp", options={"gap": gap, **plans.searched})


def _solved(optimize: Any, sparse: Any, plans: FlatPlans, time_limit: float) -> tuple[Path | None, float | None]:
    """The path of least work, None if none was found in time, and the optimality gap that is left."""
    # One binary for each step, then one number for the bytes held in each state, as fractions of the budget.
    steps = Steps(*(np.concatenate(column) for column in zip(*plans.steps.values())))
    counts = [len(each.need) for each in plans.steps.values()]
    source, row = np.repeat(list(plans.steps), counts), np.concatenate([np.arange(count) for count in counts])
    n, states, budget = len(source), len(plans.states), plans.limit or 1
    ends = {end: need for end, need in plans.ends.items() if need <= budget}
    each, need, added = np.arange(n), steps.need / budget, steps.added / budget

    def matrix(rows: Any, columns: Any, values: Any, height: int) -> Any:
        return sparse.coo_array((np.broadcast_to(values, len(rows)), (rows, columns)), shape=(height, n + states))

    # As many steps leave a state as lead to it, except the first state and the ends.
    flow = matrix(steps.target, each, 1.0, states) - matrix(source, each, 1.0, states)
    balance = np.zeros(states)
    balance[0] = -1
    inner = np.array([state not in ends for state in range(states)])
    fits = matrix(each, each, need, n) + matrix(each, n + source, 1.0, n)
    # If a step is taken, its target holds what its source holds and what the step adds.
    grows = matrix(each, each, 1.0 + added, n) + matrix(each, n + source, 1.0, n)
    grows -= matrix(each, n + steps.target, 1.0, n)
    room = np.array([1 - ends.get(state, 0) / budget for state in range(states)])
    # The work is scaled, since the solver ignores absolute gaps below a millionth, which in seconds would be large. Its
    # presolve (SciPy 1.17.1) cut off the best solution of 1 in 2,000 graphs, and saves no time here.
    result = optimize.milp(
        np.concatenate([steps.work / (steps.work.max() or 1), np.zeros(states)]),
        integrality=np.concatenate([np.ones(n), np.zeros(states)]),
        bounds=optimize.Bounds(0, np.concatenate([np.ones(n), np.maximum(room, 0)])),
        constraints=[
            optimize.LinearConstraint(flow.tocsr()[inner], balance[inner], balance[inner]),
            optimize.LinearConstraint(fits.tocsr(), -np.inf, 1),
            optimize.LinearConstraint(grows.tocsr(), -np.inf, 1),
        ],
        options={"time_limit": time_limit, "mip_rel_gap": 0, "presolve": False},
    )
    if result.x is None:
        return None, None
    path = plans.path({int(source[i]): int(row[i]) for i in np.flatnonzero(result.x[:n] > 0.5)}.__getitem__)
    # The solver lets a constraint be missed by a millionth.
    return (path, float(result.mip_gap)) if plans.peak(path) <= budget else (None, None)
