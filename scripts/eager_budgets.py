"""Measure whether budgets hold in eager loops, where each segment is a compiled function: `compile(run_eagerly=True)`.

As scripts/fit_budgets.py, for the networks that have a graph. A budget is a share of the step of compiled segments that
keep everything; the plain step runs op by op, and its tape keeps more.

    python scripts/eager_budgets.py            # all networks
    python scripts/eager_budgets.py resnet50   # this one
    python scripts/eager_budgets.py --table    # print the saved results

Results are saved in scripts/results/eager-budgets.json.
"""

import fit_budgets
import kerashub
import other_models
import saved_cases

RESULTS = saved_cases.RESULTS / "eager-budgets.json"


def run(name):
    hows = ("plain", *fit_budgets.BUDGETS)
    return {how: other_models.in_process(kerashub.KERASHUB, fit_budgets.measure, name, how, True) for how in hows}


if __name__ == "__main__":
    saved_cases.main(__file__, __doc__, fit_budgets.FUNCTIONAL, RESULTS, None, fit_budgets.row, fit_budgets.table, run)
