"""The least work under a byte budget without nesting, by integer programming.

After Checkmate (Jain et al. 2020, arXiv:1910.02653), over the plans that tfgc runs: kept and recomputed segments of the
graph's order. A path through the passes of `_search` is chosen, with the bytes held along it; each step of the path
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
from tfgc.strategies._places import searched
from tfgc.strategies._search import Columns, LeastWork, Search


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
    search, options = searched(graph, budget, len(graph))
    if search.least_peak > budget:
        optimal = strategies.get("optimal")(graph)
        prediction = simulator.predict(graph, optimal)
        if prediction.peak_bytes > budget:
            raise InfeasibleBudgetError(budget, prediction.peak_bytes, prediction.node)
        return dataclasses.replace(optimal, strategy="ilp", options={"gap": None, **optimal.options})
    chosen, gap = _solved(optimize, sparse, search, budget, time_limit)
    if chosen is not None:
        plan = search.path(lambda row, *_: chosen[row]).plan(graph, strategy="ilp", options={"gap": gap, **options})
        # The solver lets a constraint be missed by a millionth.
        if simulator.predict(graph, plan).peak_bytes <= budget:
            return plan
    return LeastWork(search, budget).plan(budget, strategy="ilp", options={"gap": None, **options})


def _solved(
    optimize: Any, sparse: Any, search: Search, budget: int, time_limit: float
) -> tuple[dict[int, int] | None, float | None]:
    """The options of least work by row, None if none were found in time, and the optimality gap that is left."""
    # For each option that may be part of a plan a binary, and the bytes held before it if it is taken, else 0; as
    # fractions of the budget.
    steps = Columns(*map(np.concatenate, zip(*search.columns)))
    counts = [len(columns.need) for columns in search.columns]
    source, option = np.repeat(np.arange(len(counts)), counts), np.concatenate([np.arange(count) for count in counts])
    held = np.full(len(search.least), np.inf)  # the fewest bytes
    held[search.root] = 0
    for row in reversed(range(len(counts))):
        columns = search.columns[row]
        fits = held[row] + columns.peaks(search.least) <= budget
        np.minimum.at(held, columns.rest[fits], held[row] + columns.added[fits])
    peaks = steps.peaks(search.least)
    taken = np.flatnonzero(held[source] + peaks <= budget)
    source, option, target, work = source[taken], option[taken], steps.rest[taken], steps.work[taken]
    n, each = len(taken), np.arange(len(taken))
    unit = budget or 1
    least, most, added = held[source] / unit, 1 - peaks[taken] / unit, steps.added[taken] / unit
    most[source == search.root] = 0

    def matrix(rows: Any, columns: Any, values: Any, height: int) -> Any:
        return sparse.coo_array((np.broadcast_to(values, len(rows)), (rows, columns)), shape=(height, 2 * n))

    # As many options are taken of a pass as lead to it, and as many bytes are held before it as after what leads to it.
    states = len(counts)
    leads = target < states
    flow = matrix(target[leads], each[leads], 1.0, states) - matrix(source, each, 1.0, states)
    bytes_ = matrix(target[leads], n + each[leads], 1.0, states) - matrix(source, n + each, 1.0, states)
    bytes_ += matrix(target[leads], each[leads], added[leads], states)
    balance = np.where(np.arange(states) == search.root, -1.0, 0.0)
    above = matrix(each, n + each, 1.0, n) - matrix(each, each, most, n)
    below = matrix(each, each, least, n) - matrix(each, n + each, 1.0, n)
    # The work is scaled, since the solver ignores absolute gaps below a millionth, which in seconds would be large. Its
    # presolve (SciPy 1.17.1) cut off the best solution of 1 in 2,000 graphs, and saves no time here.
    result = optimize.milp(
        np.concatenate([work / (work.max() or 1), np.zeros(n)]),
        integrality=np.repeat([1, 0], n),
        bounds=optimize.Bounds(0, 1),
        constraints=[
            optimize.LinearConstraint(flow.tocsr(), balance, balance),
            optimize.LinearConstraint(bytes_.tocsr(), 0, 0),
            optimize.LinearConstraint(sparse.vstack([above, below]).tocsr(), -np.inf, 0),
        ],
        options={"time_limit": time_limit, "mip_rel_gap": 0, "presolve": False},
    )
    if result.x is None:
        return None, None
    return {int(source[i]): int(option[i]) for i in np.flatnonzero(result.x[:n] > 0.5)}, float(result.mip_gap)
