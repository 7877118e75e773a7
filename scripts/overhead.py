"""Compare the time that plans cost with what `measure=True` predicts, on twelve networks.

Plans are made for shares of the plain step's activations and for the least peak, by the times of a profiled step. One
process a network: the plain step and those by plans run in turn, each in a `tf.function` with SGD, and each round gives
one ratio to plain; the medians of these count. Peaks are those of TensorFlow's allocator, above what is there between
steps.

    python scripts/overhead.py                      # all networks
    python scripts/overhead.py resnet50 xception    # these
    python scripts/overhead.py --table              # print the saved results

Results are saved in scripts/results/overhead.json.
"""

import contextlib
import statistics

import fit_budgets
import saved_cases

HOW = ("75%", "50%", "optimal")
ROUNDS, WARM_UP = 11, 2
RESULTS = saved_cases.RESULTS / "overhead.json"


def table(saved):
    """The saved results in Markdown, and how far predictions are off."""
    lines = [
        f"| network, batch | plain step | {' | '.join(HOW)} |",
        "| --- | ---: | --- | --- | --- |",
        *(row(name, saved[name]) for name in fit_budgets.FUNCTIONAL if name in saved),
    ]
    off = [abs(plan["overhead"] - plan["predicted"]) for case in saved.values() for plan in case["plans"].values()]
    within = sum(error <= 0.08 for error in off)
    lines.append(
        f"\nPredictions are off by {statistics.median(off):.1%} of the plain step in the median, and by at most 8 % in "
        f"{within} of {len(off)}."
    )
    return "\n".join(lines)


def row(name, case):
    cells = []
    for how in HOW:
        if how not in case["plans"]:
            cells.append("refused")
            continue
        plan = case["plans"][how]
        peak = plan["peak"] / case["peak"]
        cells.append(f"{plan['overhead']:+.1%} (predicted {plan['predicted']:+.1%}), peak {peak:.0%}")
    return f"| {name}, {case['batch']} | {case['seconds']:.2f} s, {case['peak'] / 1e6:.0f} MB | {' | '.join(cells)} |"


def measure(name):
    """Seconds, peaks and ratios to plain of a network's steps, and what was predicted."""
    import tensorflow as tf

    import tfgc

    model, x, y = fit_budgets.built(name)
    batch = fit_budgets.FUNCTIONAL[name][0]
    plain_step = tfgc.estimate(model, batch)
    plans = {}
    for how in HOW:
        if how == "optimal":
            plans[how] = tfgc.plan(model, batch, strategy="optimal", measure=True)
        else:
            saved = 1 - float(how.rstrip("%")) / 100
            budget = int(plain_step.needed_bytes - saved * plain_step.activation_bytes)
            with contextlib.suppress(tfgc.InfeasibleBudgetError):
                plans[how] = tfgc.plan(model, batch, budget=budget, measure=True)
    x, y = tf.convert_to_tensor(x), tf.convert_to_tensor(y)
    made = {how: training_step(name, plan, x, y) for how, plan in {"plain": None, **plans}.items()}
    figures = saved_cases.in_turn(made, ROUNDS, WARM_UP)
    return {
        "batch": batch,
        "seconds": figures["plain"]["seconds"],
        "peak": figures["plain"]["peak"],
        "plans": {
            how: {
                "overhead": figures[how]["ratio"] - 1,
                "predicted": plan.outlook.overhead,
                "peak": figures[how]["peak"],
            }
            for how, plan in plans.items()
        },
    }


def training_step(name, plan, x, y):
    import tensorflow as tf

    def loss(y, made):
        return tf.reduce_mean(tf.square(tf.cast(made, tf.float32) - y))

    return saved_cases.training_step(lambda: fit_budgets.built(name)[0], plan, loss, x, y)


if __name__ == "__main__":
    saved_cases.main(__file__, __doc__, fit_budgets.FUNCTIONAL, RESULTS, measure, row, table)
