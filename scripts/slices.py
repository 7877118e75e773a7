"""Measure the early layers of CNNs in `tfgc.recompute(layers, slices=8)`, beside the plain step.

The layers before the first `Flatten` are the early ones. Steps are eager loops with a `GradientTape`, and the same in a
`tf.function`. One process a network, in which the steps run in turn; each round gives one ratio of time to the plain
step of the same kind, and the medians of these count. Peaks are those of TensorFlow's allocator above what is there
between steps. The first step, which compares slices with the whole batch, does not count in them, and is shown.

    python scripts/slices.py                  # all networks
    python scripts/slices.py sample_cnn       # this one
    python scripts/slices.py --table          # print the saved results

Results are saved in scripts/results/slices.json.
"""

import saved_cases

WAYS, MODES = ("plain", "slices"), {"eager": "eager loop", "graph": "`tf.function`"}
NETWORKS = {"sample_cnn": (16, 224)}
SLICES = 8
ROUNDS, WARM_UP = 3, 0
RESULTS = saved_cases.RESULTS / "slices.json"
HEAD = f"| network, batch | plain step | `recompute(early, slices={SLICES})` | its first step |"


def table(saved):
    """The saved results in Markdown."""
    rows = (row(name, saved[name]) for name in NETWORKS if name in saved)
    return "\n".join([HEAD, "| --- | --- | --- | --- |", *rows])


def row(name, case):
    """A line for each mode."""
    lines = []
    for mode, words in MODES.items():
        plain, *others = (case[f"{way} {mode}"] for way in WAYS)
        cells = [f"peak {o['peak'] / plain['peak']:.0%}, time x {o['ratio']:.2f}" for o in others]
        first = others[-1]["first"]
        cells.append(f"peak {first['peak'] / plain['peak']:.0%}, {first['seconds']:.0f} s")
        start = f"| {name}, {NETWORKS[name][0]}, {words} | {plain['peak'] / 1e6:.0f} MB, {plain['seconds']:.2f} s |"
        lines.append(f"{start} {' | '.join(cells)} |")
    return "\n".join(lines)


def measure(name):
    """For each way and mode: seconds, ratio to the plain step of that mode, peak; the same of the first step."""
    made = {}
    for mode in MODES:
        steps = {f"{way} {mode}": step_of(name, way, mode) for way in WAYS}
        first = {each: saved_cases.timed(step) for each, step in steps.items()}
        for each, found in saved_cases.in_turn(steps, ROUNDS, WARM_UP).items():
            seconds, peak = first[each]
            kept = {what: found[what] for what in ("seconds", "ratio", "peak")}
            made[each] = {**kept, "first": {"seconds": seconds, "peak": peak}}
    return made


def step_of(name, way, mode):
    """A function that trains a network for a step."""
    import keras
    import numpy as np
    import tensorflow as tf

    import tfgc

    keras.utils.set_random_seed(0)
    batch, size = NETWORKS[name]
    model = tfgc.zoo.build(name, size)
    end = next(i for i, layer in enumerate(model.layers) if isinstance(layer, keras.layers.Flatten))
    early, late = keras.Sequential(model.layers[:end]), keras.Sequential(model.layers[end:])
    run = tfgc.recompute(early, slices=SLICES) if way == "slices" else early
    optimizer = keras.optimizers.SGD(1e-3)
    optimizer.build(model.trainable_variables)
    draw = np.random.default_rng(0)
    x = tf.constant(draw.normal(size=(batch, *model.input_shape[1:])), "float32")
    y = tf.constant(draw.integers(0, model.output_shape[-1], batch))

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(y, late(run(x))))
        optimizer.apply(tape.gradient(loss, model.trainable_variables))
        return loss

    taken = tf.function(step) if mode == "graph" else step
    return lambda: float(taken(x, y))


if __name__ == "__main__":
    saved_cases.main(__file__, __doc__, NETWORKS, RESULTS, measure, row, table)
