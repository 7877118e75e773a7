"""Compare training in slices of the batch with the plain step, and with Keras's gradient accumulation.

Plain steps, in a graph and op by op, steps by the plan of `optimal` with `slices=8`, and Keras's optimizer with
`gradient_accumulation_steps=8` on a batch that is cut by hand. `slices_memory.py` has one process a case, and
predictions.

One process a network, in which the steps run in turn; each round gives one ratio of time to the plain step, and the
medians of these count. Peaks are those of TensorFlow's allocator above what is there between steps; what each way keeps
between steps beyond the plain one is shown beside them.

    python scripts/slices.py                  # all networks
    python scripts/slices.py sample_cnn       # this one
    python scripts/slices.py --table          # print the saved results

Results are saved in scripts/results/slices.json.
"""

import gc

import saved_cases

WAYS = ("plain", "eager", "segments", "keras")
NETWORKS = {"sample_cnn": (16, 128), "big_cnn": (16, 128), "vgg16": (16, 224)}
SLICES = 8
ROUNDS, WARM_UP = 5, 1
RESULTS = saved_cases.RESULTS / "slices.json"
HEAD = (
    f"| network, batch | plain step | plain, op by op | a plan with `slices={SLICES}` | "
    f"Keras, `gradient_accumulation_steps={SLICES}` |"
)


def table(saved):
    """The saved results in Markdown."""
    rows = (row(name, saved[name]) for name in NETWORKS if name in saved)
    return "\n".join([HEAD, "|" + " --- |" * (len(WAYS) + 1), *rows])


def row(name, case):
    plain, cells = case["plain"], []
    for way in WAYS[1:]:
        found = case.get(way)
        if found is None:
            cells.append("not measured")
            continue
        kept = (found["held"] - plain["held"]) / 1e6
        more = f", {kept:.0f} MB kept between steps" if kept >= 1 else ""
        cells.append(f"peak {found['peak'] / plain['peak']:.0%}, time x {found['ratio']:.2f}{more}")
    start = f"| {name}, {NETWORKS[name][0]} | {plain['peak'] / 1e6:.0f} MB, {plain['seconds']:.2f} s |"
    return f"{start} {' | '.join(cells)} |"


def measure(name):
    """For each way to train: seconds and ratio to plain, the peak of a step, and the bytes kept between steps."""
    import tensorflow as tf

    steps, held, last = {}, {}, tf.config.experimental.get_memory_info("CPU:0")["current"]
    for way in WAYS:
        steps[way] = step_of(name, way)
        steps[way]()
        gc.collect()
        now = tf.config.experimental.get_memory_info("CPU:0")["current"]
        held[way], last = now - last, now
    figures = saved_cases.in_turn(steps, ROUNDS, WARM_UP)
    return {
        way: {**{what: found[what] for what in ("seconds", "ratio", "peak")}, "held": held[way]}
        for way, found in figures.items()
    }


def built(name):
    """A network, a loss, and a batch for them."""
    import keras
    import numpy as np

    import tfgc.zoo

    keras.utils.set_random_seed(0)
    batch, size = NETWORKS[name]
    model = tfgc.zoo.build(name, size)
    draw = np.random.default_rng(0)
    x = draw.normal(size=(batch, *model.input_shape[1:])).astype("float32")
    y = draw.integers(0, model.output_shape[-1], batch)
    last = model.layers[-1]
    from_logits = getattr(last, "activation", None) is not keras.activations.softmax
    return model, keras.losses.SparseCategoricalCrossentropy(from_logits=from_logits), x, y


def step_of(name, way):
    """A function that trains a network in one of the ways for a step."""
    if way == "keras":
        return accumulated(name)
    if way == "eager":
        return op_by_op(name)
    import tensorflow as tf

    import tfgc

    model, loss, x, y = built(name)
    plan = plan_of(model, len(x), way)
    step = tfgc.train_step(model, loss, "sgd", plan=plan)
    x, y = tf.constant(x), tf.constant(y)
    return lambda: float(step(x, y)["loss"])


def plan_of(model, batch, way):
    """The plan of a way to train."""
    import tfgc

    if way == "plain":
        return tfgc.plan(model, batch, strategy="keep_all")
    return tfgc.plan(model, batch, strategy="optimal", slices=SLICES)


def op_by_op(name):
    import keras
    import tensorflow as tf

    model, loss, x, y = built(name)
    optimizer = keras.optimizers.SGD(0.01)
    optimizer.build(model.trainable_variables)
    x, y = tf.constant(x), tf.constant(y)

    def step():
        with tf.GradientTape() as tape:
            value = loss(y, model(x, training=True))
        optimizer.apply(tape.gradient(value, model.trainable_variables))
        return float(value)

    return step


def accumulated(name):
    import keras
    import tensorflow as tf

    model, loss, x, y = built(name)
    optimizer = keras.optimizers.SGD(0.01, gradient_accumulation_steps=SLICES)
    model.compile(optimizer, loss, jit_compile=False)
    parts = list(zip(tf.split(tf.constant(x), SLICES), tf.split(tf.constant(y), SLICES)))
    return lambda: [float(model.train_on_batch(*part)) for part in parts]


if __name__ == "__main__":
    saved_cases.main(__file__, __doc__, NETWORKS, RESULTS, measure, row, table)
