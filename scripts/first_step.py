"""Measure what the first step costs: TensorFlow traces it, optimizes its graph and runs it, and tfgc plans before.

Runs one process for each network, mode and side, one after the other. Each takes a step of a tiny model first, enabled
if the network is to be, so that no imports are counted. Seconds are those of the processor (user and system), since
they depend less than others on what else the machine does; each is the median of several processes. Sizes are small:
tracing costs the same at any size, and the ratio is nearest to that of tracing alone.

    python scripts/first_step.py               # all networks, three processes a case
    python scripts/first_step.py --quick       # one small network, one process a case
    python scripts/first_step.py vit mirnet    # these networks
    python scripts/first_step.py --table       # print the saved results

Results are saved in scripts/results/first_step.json, those of --quick are not.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys

import saved_cases

NETWORKS = ("resnet50", "densenet121", "vit", "mirnet")
# Small ones, for --quick.
SMALL = ("small_vit",)
MODES = ("fit", "eager")
BATCH = 2
RESULTS = saved_cases.RESULTS / "first_step.json"


def main():
    more = {
        "--quick": {"action": "store_true", "help": "one small network, one process a case"},
        "--repeats": {"type": int, "default": 3, "help": "processes a case (default: 3)"},
        "--modes": {"nargs": "+", "default": MODES, "choices": MODES, "help": "default: both"},
        "--case": {"nargs": 3, "help": argparse.SUPPRESS},
    }
    arguments = saved_cases.arguments(__doc__, NETWORKS, more)
    if arguments.case:
        network, mode, side = arguments.case
        print(json.dumps(measure(network, mode, side == "tfgc")))
        return
    print("| network | mode | plain | tfgc | ratio | planning apart | ratio with planning |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
    saved = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if arguments.table:
        for name, figures in saved.items():
            print(row(name, figures))
        return
    for network in SMALL if arguments.quick else arguments.networks or NETWORKS:
        for mode in arguments.modes:
            figures = medians(network, mode, 1 if arguments.quick else arguments.repeats)
            print(row(f"{network} | {mode}", figures), flush=True)
            saved[f"{network} | {mode}"] = figures
            if not arguments.quick:
                RESULTS.write_text(json.dumps(saved, indent=1) + "\n")


def medians(network, mode, repeats):
    """Measure both sides in turn; return the seconds of the plain step, of tfgc's, and of planning."""
    found = {"plain": [], "tfgc": []}
    for _ in range(repeats):
        for side, cases in found.items():
            command = [sys.executable, __file__, "--case", network, mode, side]
            run = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            cases.append(json.loads(run.stdout.splitlines()[-1]))
    (_, plain), (planning, first) = (map(statistics.median, zip(*cases)) for cases in found.values())
    return plain, first, planning


def row(name, figures):
    plain, first, planning = figures
    return (
        f"| {name} | {plain:.1f} s | {first:.1f} s | {first / plain:.2f} | {planning:.1f} s "
        f"| {(first + planning) / plain:.2f} |"
    )


def measure(network, mode, enabled):
    """Seconds of planning, and of the first step."""
    import keras

    first_step(keras.Sequential([keras.Input((8, 8, 3)), keras.layers.Conv2D(2, 1)]), mode, enabled)
    return first_step(globals()[network](), mode, enabled)


def first_step(model, mode, enabled):
    """Plan a model and enable it, if it is to be, and take a step; return the seconds of both."""
    import keras
    import numpy as np
    import tensorflow as tf

    import tfgc

    x = np.random.default_rng(0).normal(size=(BATCH, *model.input_shape[1:])).astype("float32")
    y = np.zeros((BATCH, *model.output_shape[1:]), "float32")
    model.compile("sgd", "mse", jit_compile=False)
    planned = begin = spent()
    if enabled:
        plan = tfgc.plan(model, BATCH)
        planned = spent()
        tfgc.enable(model, plan)
    if mode == "fit":
        model.fit(x, y, batch_size=BATCH, verbose=0)
    else:
        optimizer = keras.optimizers.SGD()
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        optimizer.apply(tape.gradient(loss, [v.value for v in model.trainable_variables]), model.trainable_variables)
    return planned - begin, spent() - planned


def spent():
    """Seconds of the processor that this process used, in all its threads."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def resnet50():
    import keras

    return keras.applications.ResNet50(weights=None, input_shape=(64, 64, 3), classes=10)


def densenet121():
    import keras

    return keras.applications.DenseNet121(weights=None, input_shape=(64, 64, 3), classes=10)


def small_vit():
    return vit(blocks=4)


def vit(blocks=12, width=64, heads=4):
    """A vision transformer of equal blocks."""
    from keras import Input, Model, layers

    inputs = Input((64, 64, 3))
    x = layers.Reshape((64, width))(layers.Conv2D(width, 8, 8)(inputs))
    for _ in range(blocks):
        y = layers.LayerNormalization()(x)
        x = layers.Add()([x, layers.MultiHeadAttention(heads, width // heads, dropout=0.1)(y, y)])
        y = layers.Dense(4 * width, activation="gelu")(layers.LayerNormalization()(x))
        x = layers.Add()([x, layers.Dense(width)(layers.Dropout(0.1)(y))])
    return Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling1D()(layers.LayerNormalization()(x))))


def mirnet(groups=1, blocks=1, channels=16):
    """Groups of equal residual blocks with three scales, attention and fusion, as in MIRNet (arXiv:2003.06792)."""
    from keras import Input, Model, layers, ops

    def convolved(x, filters=channels, size=3, **options):
        return layers.Conv2D(filters, size, padding="same", **options)(x)

    def pooled(x):
        return layers.Reshape((1, 1, channels))(layers.GlobalAveragePooling2D()(x))

    def fused(scales):
        compact = convolved(pooled(layers.Add()(scales)), 8, 1, activation="relu")
        return layers.Add()([x * convolved(compact, channels, 1, activation="softmax") for x in scales])

    def attended(x):
        y = convolved(convolved(x, activation="relu"))
        where = ops.concatenate([ops.mean(y, -1, keepdims=True), ops.max(y, -1, keepdims=True)], -1)
        spatial = y * convolved(where, 1, 1, activation="sigmoid")
        weights = convolved(convolved(pooled(y), 8, 1, activation="relu"), channels, 1, activation="sigmoid")
        return layers.Add()([x, convolved(layers.Concatenate()([spatial, y * weights]), channels, 1)])

    def down(x):
        main = layers.MaxPooling2D()(convolved(convolved(x, activation="relu"), activation="relu"))
        return layers.Add()([convolved(main, channels, 1), convolved(layers.MaxPooling2D()(x), channels, 1)])

    def up(x):
        main = layers.UpSampling2D()(convolved(convolved(x, activation="relu"), activation="relu"))
        return layers.Add()([convolved(main, channels, 1), convolved(layers.UpSampling2D()(x), channels, 1)])

    def block(x):
        half = down(x)
        quarter = down(half)
        x1, x2, x3 = attended(x), attended(half), attended(quarter)
        y1, y2, y3 = (
            fused([x1, up(x2), up(up(x3))]),
            fused([down(x1), x2, up(x3)]),
            fused([down(down(x1)), down(x2), x3]),
        )
        return layers.Add()([x, convolved(fused([attended(y1), up(attended(y2)), up(up(attended(y3)))]))])

    inputs = Input((32, 32, 3))
    x = first = convolved(inputs)
    for _ in range(groups):
        y = convolved(x)
        for _ in range(blocks):
            y = block(y)
        x = layers.Add()([convolved(y), x])
    return Model(inputs, layers.Add()([inputs, convolved(layers.Add()([first, x]), 3)]))


if __name__ == "__main__":
    main()
