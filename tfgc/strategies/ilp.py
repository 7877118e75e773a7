"""The least work under a byte budget without nesting, by integer programming.

After Checkmate (Jain et al. 2020, arXiv:1910.02653), over the plans that tfgc runs: kept and
recomputed segments of the graph's order. A path through the states of `_flat_plans` is chosen, with
the bytes held along it; each step of the path must fit. Solved by HiGHS through SciPy under
a time limit; the optimality gap that is left when it ends is in the plan's options. Exact where the gap is 0, for a
budget in buffers; `tfgc.plan` asks at budgets that fall by 4 % until the allocator can serve the plan, too.
"""

import numpy as np

from tfgc import strategies
from tfgc._errors import InfeasibleBudgetError, TfgcError
from tfgc._simulate import simulator
from tfgc.strategies import _flat_plans


def plan(graph, *, budget, time_limit=60):
    """Return the plan of least work under `budget` bytes, weights left out, found in `time_limit` seconds.

    Example:
        >>> import keras, tfgc
        >>> layers = [keras.layers.Dense(8, activation="gelu") for _ in range(9)]
        >>> model = keras.Sequential([keras.Input((8,)), *layers])
        >>> plan = tfgc.plan(model, batch_size=512, strategy="ilp", budget="75%")
        >>> plan.options["gap"]
        0.0
    """
    optimize, sparse = _scipy()
    paths = _flat_plans.Paths(graph, budget)
    least = paths.least_peak()
    if least is None:
        prediction = simulator.predict(graph, strategies.apply("optimal", graph))
        raise InfeasibleBudgetError(budget, prediction.peak_bytes, prediction.node)
    way, gap = _solved(optimize, sparse, paths, budget, time_limit)
    return paths.plan(way or least, strategy="ilp", options={"gap": gap})


def _solved(optimize, sparse, paths, budget, time_limit):
    """The way of least work, or None if none was found in time, and the optimality gap that is left.

    One binary for each step and one number for the bytes held in each state, in parts of the budget.
    """
    steps, ends, count = paths.steps(budget)
    source, row, target, need, added, work = (np.array(column) for column in zip(*steps))
    need, added = need / budget, added / budget
    n = len(steps)
    each = np.arange(n)

    def entry(rows, columns, values, height):
        return sparse.coo_array((np.broadcast_to(values, len(rows)), (rows, columns)), shape=(height, n + count))

    flow = entry(target, each, 1.0, count) - entry(source, each, 1.0, count)
    balance = np.zeros(count)
    balance[0] = -1
    inner = np.array([s not in ends for s in range(count)])
    fits = entry(each, each, need, n) + entry(each, n + source, 1.0, n)
    # If a step is taken, its target holds what its source holds and what it adds.
    grows = entry(each, each, 1.0 + added, n) + entry(each, n + source, 1.0, n) - entry(each, n + target, 1.0, n)
    room = np.array([1 - ends.get(s, 0) / budget for s in range(count)])
    # The solver takes an absolute gap of a millionth for none, which in seconds would be much. Its presolve (SciPy
    # 1.17.1) cut off the best solution in 1 of 2,000 graphs, and saves no time here.
    result = optimize.milp(
        np.concatenate([work / (work.max() or 1), np.zeros(count)]),
        integrality=np.concatenate([np.ones(n), np.zeros(count)]),
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
    taken = {source[i]: i for i in np.flatnonzero(result.x[:n] > 0.5)}
    way, state = [], 0
    while state not in ends:
        way.append((state, row[taken[state]]))
        state = target[taken[state]]
    # The solver allows a constraint to be missed by a millionth.
    return (way, float(result.mip_gap)) if paths.peak(way) <= budget else (None, None)


def _scipy():
    try:
        from scipy import optimize, sparse
    except ImportError as error:
        raise TfgcError('strategy "ilp" needs SciPy: pip install "tfgc[ilp]"') from error
    return optimize, sparse
