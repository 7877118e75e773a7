"""Compare the time that plans cost with what `measure=True` predicts, on ten networks.

Plans are made for shares of the plain step's activations and for the least peak, by the times of a profiled step. One
process a network: the plain step and those by plans run in turn, each in a `tf.function` with SGD, and each round gives
one ratio to plain; the medians of these count. Peaks are those of TensorFlow's allocator, above what is there between
steps.

    python scripts/overhead.py                      # all networks
    python scripts/overhead.py resnet50 xception    # these
    python scripts/overhead.py --table              # print the saved results

Results are saved in scripts/results/overhead.json.
"""

import os
import pathlib
import statistics

import fit_budgets
import saved_cases

HOW = ("75%", "50%", "optimal")
ROUNDS, WARM_UP = 11, 2
RESULTS = pathlib.Path(__file__).parent / "results" / "overhead.json"


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
        plan = case["plans"][how]
        peak = plan["peak"] / case["peak"]
        cells.append(f"{plan['overhead']:+.1%} (predicted {plan['predicted']:+.1%}), peak {peak:.0%}")
    return f"| {name}, {case['batch']} | {case['seconds']:.2f} s, {case['peak'] / 1e6:.0f} MB | {' | '.join(cells)} |"


def measure(name):
    """Seconds, peaks and ratios to plain of a network's steps, and what was predicted."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
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
            plans[how] = tfgc.plan(model, batch, budget=budget, measure=True)
    x, y = tf.convert_to_tensor(x), tf.convert_to_tensor(y)
    steps = {"plain": training_step(name, None), **{how: training_step(name, plan) for how, plan in plans.items()}}
    seconds = {how: [] for how in steps}
    peaks = {how: [] for how in steps}
    for _ in range(WARM_UP + ROUNDS):
        for how, step in steps.items():
            spent, peak = saved_cases.timed(lambda step=step: step(x, y).numpy())
            seconds[how].append(spent)
            peaks[how].append(peak)
    plain = seconds["plain"][WARM_UP:]
    found = {}
    for how, plan in plans.items():
        ratios = [spent / beside for spent, beside in zip(seconds[how][WARM_UP:], plain)]
        found[how] = {
            "overhead": statistics.median(ratios) - 1,
            "predicted": plan.outlook.overhead,
            "peak": max(peaks[how][WARM_UP:]),
        }
    return {
        "batch": batch,
        "seconds": statistics.median(plain),
        "peak": max(peaks["plain"][WARM_UP:]),
        "plans": found,
    }


def training_step(name, plan):
    import keras
    import tensorflow as tf

    import tfgc

    keras.utils.clear_session(free_memory=False)  # A plan names layers, and Keras numbers them in each process.
    keras.utils.set_random_seed(0)
    model, _, _ = fit_budgets.built(name)
    if plan is not None:
        tfgc.enable(model, plan)
    optimizer = keras.optimizers.SGD(1e-4)
    optimizer.build(model.trainable_variables)

    @tf.function(autograph=False)
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.cast(model(x, training=True), tf.float32) - y))
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    return step


if __name__ == "__main__":
    saved_cases.main(__file__, __doc__, fit_budgets.FUNCTIONAL, RESULTS, measure, row, table)
