"""Measure whether a larger budget is ever slower: plans for falling budgets, in turn with the plain step.

One process a network: the plain step and those by `tfgc.plan(model, batch, budget=...)`, each in a `tf.function` with
SGD, run one after another in each round. Each round gives a ratio to plain, and a ratio of each plan to the one of the
next smaller budget; the medians of these count. A larger budget is slower beyond noise if three rounds of four say so.

    python scripts/larger_budgets.py                     # all networks
    python scripts/larger_budgets.py resnet50 unet       # these
    python scripts/larger_budgets.py --table             # print the saved results

Results are saved in scripts/results/larger-budgets.json.
"""

import itertools
import statistics

import fit_budgets
import overhead
import saved_cases

ROUNDS, WARM_UP = 11, 2
RESULTS = saved_cases.RESULTS / "larger-budgets.json"


def table(saved):
    """The saved results in Markdown, and how often a larger budget was slower."""
    lines = [
        f"| network, batch | plain step | {' | '.join(fit_budgets.BUDGETS)} | slowest against a smaller budget |",
        f"| --- | ---: |{' ---: |' * len(fit_budgets.BUDGETS)} ---: |",
        *(row(name, saved[name]) for name in fit_budgets.FUNCTIONAL if name in saved),
    ]
    pairs = [pair for case in saved.values() for pair in case["pairs"]]
    slower = sum(pair["quartile"] > 1 for pair in pairs)
    lines.append(
        f"\nOf {len(pairs)} budgets with a smaller one in the table, {slower} were slower than it beyond noise."
    )
    return "\n".join(lines)


def row(name, case):
    cells = [f"{case['ratios'][how]:.2f}" if how in case["ratios"] else "refused" for how in fit_budgets.BUDGETS]
    worst = max((pair["median"] for pair in case["pairs"]), default=None)
    shown = "" if worst is None else f"{worst:.2f}"
    return f"| {name}, {case['batch']} | {case['seconds']:.2f} s | {' | '.join(cells)} | {shown} |"


def measure(name):
    """Seconds of a network's plain step, ratios to it, and those of neighboring budgets."""
    import tensorflow as tf

    import tfgc

    model, x, y = fit_budgets.built(name)
    batch = fit_budgets.FUNCTIONAL[name][0]
    x, y = tf.convert_to_tensor(x), tf.convert_to_tensor(y)
    steps = {"plain": overhead.training_step(name, None, x, y)}
    for budget in fit_budgets.BUDGETS:
        try:
            steps[budget] = overhead.training_step(name, tfgc.plan(model, batch, budget=budget), x, y)
        except tfgc.InfeasibleBudgetError:
            break
    figures = saved_cases.in_turn(steps, ROUNDS, WARM_UP)
    plain = figures.pop("plain")
    pairs = [
        (larger, [one / other for one, other in zip(figures[larger]["ratios"], figures[smaller]["ratios"])])
        for larger, smaller in itertools.pairwise(figures)
    ]
    return {
        "batch": batch,
        "seconds": plain["seconds"],
        "ratios": {how: found["ratio"] for how, found in figures.items()},
        "pairs": [
            {"budget": how, "median": statistics.median(found), "quartile": statistics.quantiles(found, n=4)[0]}
            for how, found in pairs
        ],
    }


if __name__ == "__main__":
    saved_cases.main(__file__, __doc__, fit_budgets.FUNCTIONAL, RESULTS, measure, row, table)
