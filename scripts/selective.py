"""Compare steps by plans with selective segments with those by plans without, and with the plain step.

Plans are made for shares of the plain step's activations, by flops and by the times of a profiled step. One process a
network: all steps run in turn, each in a `tf.function` with SGD, and each round gives one ratio to the plain step; the
medians of these count. Peaks are those of TensorFlow's allocator, above what is there between steps.

    python scripts/selective.py             # all networks, about two minutes each on 2 cores
    python scripts/selective.py --table     # print the saved results

Results are saved in scripts/results/selective.json.
"""

import os
import tempfile

import saved_cases

NETWORKS = {"gpt(6, 256, 256, 5000)": 8, "transformer_encoder": 8}
SHARES = (0.5, 0.75)
ROUNDS, WARM_UP = 9, 2
RESULTS = saved_cases.RESULTS / "selective.json"


def table(saved):
    """The saved results in Markdown."""
    lines = [
        "| network, batch | activations asked for | work counted in | without selective segments | with |",
        "| --- | ---: | --- | --- | --- |",
        *(line for name in NETWORKS if name in saved for line in rows(name, saved[name])),
    ]
    return "\n".join(lines)


def row(name, case):
    return "\n".join(rows(name, case))


def rows(name, case):
    for way in case["plans"]:
        without, with_them = (f"x {plan['ratio']:.3f}, peak {plan['peak'] / case['peak']:.0%}" for plan in way["steps"])
        yield f"| {name}, {case['batch']} | {way['share']:.0%} | {way['work']} | {without} | {with_them} |"


def measure(name):
    """Ratios of time to the plain step, and peaks."""
    import keras
    import tensorflow as tf

    from tfgc import zoo

    batch = NETWORKS[name]
    model = built(name)
    tokens = tf.random.stateless_uniform((batch, *model.input_shape[1:]), (1, 2), 0, 5000, tf.int32)
    targets = tf.random.stateless_uniform((batch, *model.output_shape[1:-1]), (3, 4), 0, 5000, tf.int32)
    ways = [(share, work) for share in SHARES for work in ("flops", "seconds")]
    plans = [plan(name, batch, share, work == "seconds", chosen) for share, work in ways for chosen in (False, True)]
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    steps = [saved_cases.training_step(lambda: zoo.build(name), each, loss, tokens, targets) for each in (None, *plans)]
    plain, *others = saved_cases.in_turn(dict(enumerate(steps)), ROUNDS, WARM_UP).values()
    figures = [{what: found[what] for what in ("ratio", "peak")} for found in others]
    pairs = zip(ways, zip(figures[::2], figures[1::2]))
    return {
        "batch": batch,
        "seconds": plain["seconds"],
        "peak": plain["peak"],
        "plans": [{"share": share, "work": work, "steps": pair} for (share, work), pair in pairs],
    }


def plan(name, batch, share, timed, selective):
    """A plan for a share of the plain step's activations."""
    import tfgc
    from tfgc._core.recently_used import RecentlyUsed
    from tfgc._costs import node_costs
    from tfgc._pure import taken_results

    plain = tfgc.estimate(built(name), batch, optimizer="sgd")
    budget = int(plain.peak_bytes - (1 - share) * plain.activation_bytes)
    found = taken_results.dear_products
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TFGC_CACHE"] = folder
        node_costs._READ = RecentlyUsed(4096)
        try:
            taken_results.dear_products = found if selective else lambda *_: []
            return tfgc.plan(built(name), batch, budget=budget, optimizer="sgd", measure=timed)
        finally:
            taken_results.dear_products = found


def built(name):
    import keras

    from tfgc import zoo

    keras.utils.clear_session(free_memory=False)  # A plan names layers, and Keras numbers them in each process.
    keras.utils.set_random_seed(0)
    return zoo.build(name)


if __name__ == "__main__":
    saved_cases.main(__file__, __doc__, NETWORKS, RESULTS, measure, row, table)
