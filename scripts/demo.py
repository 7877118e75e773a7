"""Measure a network, then train one on real images with and without tfgc.

1. `tfgc compare` measures memory and time of plain and recomputed steps of the sample CNN, and `tfgc report` makes a
   page of the results.
2. `model.fit` trains a small residual network with Dropout and BatchNormalization for some epochs on scikit-learn's
   digits, plain and recomputed, from the same seed: the same loss curve and test accuracy, in less memory.

Writes tables, pictures and the page to the folder given by --output (default: demo_output).
"""

import argparse
import io
import json
import pathlib
import subprocess
import sys
import time

import saved_cases

EPOCHS, BATCH = 6, 64


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("demo_output"))
    parser.add_argument("--train", choices=("plain", "recomputed"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.train:
        print(json.dumps(train(arguments.train)))
        return
    from tfgc import _files

    arguments.output.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "tfgc", "compare", "sample_cnn", "--batch-size", "8", "--steps", "2"]
    files = ["--json", arguments.output / "sample_cnn.json", "--plot", arguments.output / "sample_cnn.png"]
    table = subprocess.run([*command, *files], check=True, stdout=subprocess.PIPE, text=True).stdout
    print(table)
    _files.write(arguments.output / "sample_cnn.txt", table)
    page = [arguments.output / "sample_cnn.json", "-o", arguments.output / "report.html"]
    subprocess.run([sys.executable, "-m", "tfgc", "report", *page], check=True, stdout=subprocess.DEVNULL)
    runs = {}
    for mode in ("plain", "recomputed"):
        print(f"training on digits, {mode} ...", file=sys.stderr, flush=True)
        child = subprocess.run(
            [sys.executable, __file__, "--train", mode], check=True, stdout=subprocess.PIPE, text=True
        )
        runs[mode] = json.loads(child.stdout.splitlines()[-1])
    show(runs, arguments.output)


def build():
    """Build a residual network with nine blocks for 32x32 grey images."""
    import keras
    from keras import layers

    keras.utils.set_random_seed(1)
    inputs = keras.Input((32, 32, 1))
    x = layers.Conv2D(16, 3, padding="same")(inputs)
    for filters, stride in ((16, 1), (16, 1), (16, 1), (32, 2), (32, 1), (32, 1), (64, 2), (64, 1), (64, 1)):
        short = x if stride == 1 else layers.Conv2D(filters, 1, strides=stride)(x)
        y = layers.ReLU()(layers.BatchNormalization(momentum=0.9)(x))
        y = layers.Conv2D(filters, 3, strides=stride, padding="same")(y)
        y = layers.ReLU()(layers.BatchNormalization(momentum=0.9)(y))
        y = layers.Dropout(0.1)(y)
        x = layers.Add()([short, layers.Conv2D(filters, 3, padding="same")(y)])
    x = layers.GlobalAveragePooling2D()(layers.ReLU()(layers.BatchNormalization(momentum=0.9)(x)))
    return keras.Model(inputs, layers.Dense(10)(x), name="digits_resnet")


def train(mode):
    """Train on digits in a separate process; return losses, test accuracy, memory and time."""
    from tfgc._cli import choices

    choices.import_quietly()
    import keras
    import numpy as np
    import tensorflow as tf
    from sklearn.datasets import load_digits

    import tfgc

    digits = load_digits()
    images = np.kron(digits.images / 16.0, np.ones((4, 4)))[..., None].astype("float32")
    order = np.random.default_rng(0).permutation(len(images))
    held_out, rest = order[:360], order[360:]
    model = build()
    if mode == "recomputed":
        tfgc.enable(model)
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])

    device = "GPU:0" if tf.config.list_physical_devices("GPU") else "CPU:0"
    peaks, begin = saved_cases.peaks(device), time.perf_counter()
    history = model.fit(
        images[rest], digits.target[rest], batch_size=BATCH, epochs=EPOCHS, verbose=0, callbacks=[peaks], shuffle=False
    )
    seconds = time.perf_counter() - begin
    _, accuracy = model.evaluate(images[held_out], digits.target[held_out], verbose=0)
    return {"loss": history.history["loss"], "accuracy": accuracy, "peak_bytes": max(peaks.found), "seconds": seconds}


def show(runs, output):
    """Print both loss curves side by side, and draw them next to the peaks."""
    import rich.table
    from matplotlib.figure import Figure

    from tfgc import _files, _units
    from tfgc._report import command_tables

    table = rich.table.Table(
        box=rich.box.SIMPLE, title="Digits: loss of each epoch, test accuracy, memory above weights"
    )
    table.add_column("")
    for mode in runs:
        table.add_column(mode, justify="right")
    for epoch in range(EPOCHS):
        table.add_row(f"loss, epoch {epoch + 1}", *(f"{run['loss'][epoch]:.6f}" for run in runs.values()))
    table.add_row("test accuracy", *(f"{run['accuracy'] * 100:.1f} %" for run in runs.values()))
    table.add_row("peak of a step", *(_units.format_bytes(run["peak_bytes"]) for run in runs.values()))
    table.add_row("training time", *(_units.format_seconds(run["seconds"]) for run in runs.values()))
    table.caption = "From the same seed. The curves differ only by rounding, because fit compiles different graphs."
    command_tables.print_table(table)
    text = io.StringIO()
    command_tables.print_table(table, text)
    _files.write(output / "digits.txt", text.getvalue())

    figure = Figure(figsize=(9, 4), layout="constrained")
    curves, memory = figure.subplots(1, 2, width_ratios=(2, 1))
    for (mode, run), style in zip(runs.items(), ("o-", "x--")):
        curves.plot(range(1, EPOCHS + 1), run["loss"], style, label=f"{mode}: test accuracy {run['accuracy']:.1%}")
    curves.set(xlabel="epoch", ylabel="training loss", title="the same training")
    curves.legend()
    bars = memory.bar(list(runs), [run["peak_bytes"] / 1e6 for run in runs.values()], color=["tab:blue", "tab:orange"])
    memory.bar_label(bars, fmt="%.0f MB")
    memory.set(ylabel="peak above weights (MB)", title="in less memory")
    figure.savefig(output / "digits.png", dpi=120)
    print(f"Tables and pictures are in {output.resolve()}. Open {output.resolve() / 'report.html'} in a browser.")


if __name__ == "__main__":
    main()
