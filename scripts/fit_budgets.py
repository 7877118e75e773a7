"""Measure whether budgets hold in `fit`: `tfgc.enable(model, budget=...)` is all that is added to a Keras program.

Runs one process for each network and budget, one after the other: eight steps of `model.fit`, of which the last five
count. Bytes are those that TensorFlow's allocator reports, weights and the optimizer's slots included; a budget in
percent is a share of the plain step that tfgc predicts.

    python scripts/fit_budgets.py                # all networks
    python scripts/fit_budgets.py gan resnet50   # these
    python scripts/fit_budgets.py --table        # print the saved results

Results are saved in scripts/results/fit-budgets.json.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys

# Networks with a graph, by the names of `tfgc.zoo.build`: batch and image size.
FUNCTIONAL = {
    "resnet50": (8, 128),
    "densenet121": (8, 128),
    "efficientnetb0": (8, 128),
    "xception": (8, 128),
    "mobilenetv2": (16, 128),
    "inceptionv3": (8, 139),
    "convnexttiny": (4, 128),
    "unet": (2, 128),
    "gpt(6, 256, 256, 5000)": (4, None),
    "transformer_encoder": (8, None),
}
OUTER = ("gan", "distiller", "shift_vit", "residual_net", "diffusion", "siamese")
HOW = ("plain", "least", "70%", "50%")
RESULTS = pathlib.Path(__file__).parent / "results" / "fit-budgets.json"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", metavar="network", help="default: all")
    parser.add_argument("--table", action="store_true", help="print the saved results and measure nothing")
    parser.add_argument("--case", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(measure(*arguments.case)))
        return
    known = (*FUNCTIONAL, *OUTER)
    if unknown := set(arguments.networks) - set(known):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; choose from: {', '.join(known)}")
    print("| network | plain | least peak | 70% | 50% | predicted |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    saved = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if not arguments.table:
        for name in arguments.networks or known:
            saved[name] = {how: case(name, how) for how in HOW}
            print(row(name, saved[name]), flush=True)
            RESULTS.write_text(json.dumps(saved, indent=1) + "\n")
        return
    for name in known:
        if name in saved:
            print(row(name, saved[name]))


def case(name, how):
    command = [sys.executable, __file__, "--case", name, how]
    run = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(run.stdout.splitlines()[-1])


def row(name, results):
    plain = results["plain"]["peak"]
    least = results["least"]
    cells = [f"{plain / 1e6:.0f} MB", f"{least['peak'] / plain:.0%}"]
    for how in HOW[2:]:
        result = results[how]
        if "refused" in result:
            cells.append("below the least")
        else:
            over = result["peak"] / result["budget"] - 1
            cells.append(f"{result['peak'] / plain:.0%}, " + ("holds" if over <= 0 else f"misses by {over:.1%}"))
    off = least["predicted_plain"] / plain - 1, least["predicted"] / least["peak"] - 1
    return f"| {name} | {' | '.join(cells)} | {off[0]:+.0%}, {off[1]:+.0%} |"


def measure(name, how):
    """Train for eight steps; return the largest peak of the last five and what was predicted, in bytes."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import keras
    import tensorflow as tf

    import tfgc

    peaks = []

    class Peaks(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            tf.config.experimental.reset_memory_stats("CPU:0")

        def on_train_batch_end(self, batch, logs=None):
            peaks.append(tf.config.experimental.get_memory_info("CPU:0")["peak"])

    keras.utils.set_random_seed(0)
    model, x, y = built(name)
    if how != "plain":
        tfgc.enable(model, budget=None if how == "least" else how, verbose=0)
    data = tf.data.Dataset.from_tensors(x if y is None else (x, y)).repeat(8)
    try:
        model.fit(data, verbose=0, callbacks=[Peaks()])
    except tfgc.InfeasibleBudgetError as error:
        return {"refused": str(error).splitlines()[0]}
    result = {"peak": max(peaks[-5:])}
    if how != "plain":
        plan = tfgc.status(model).plans[0]
        result |= {"predicted": plan.predicted_bytes, "predicted_plain": plan.plain_bytes, "unchanged": plan.unchanged}
    if how in HOW[2:]:
        result["budget"] = int(plan.plain_bytes * float(how.rstrip("%")) / 100)
    return result


def built(name):
    """A compiled model and random data for it."""
    import numpy as np
    import outer_models

    import tfgc.zoo

    if name in OUTER:
        return getattr(outer_models, name)()
    batch, size = FUNCTIONAL[name]
    model = tfgc.zoo.build(name, size)
    model.compile("sgd", "mse", jit_compile=False)
    draw = np.random.default_rng(0)
    (shape,) = [tensor.shape[1:] for tensor in model.inputs]
    if model.inputs[0].dtype.startswith("int"):
        x = draw.integers(0, 100, (batch, *shape))
    else:
        x = draw.normal(size=(batch, *shape)).astype("float32")
    return model, x, np.zeros((batch, *model.output_shape[1:]), "float32")


if __name__ == "__main__":
    main()
