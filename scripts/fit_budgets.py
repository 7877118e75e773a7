"""Measure whether budgets hold in `fit`: `tfgc.enable(model, budget=...)` is all that is added to a Keras program.

Runs one process for each network and budget: eight steps of `model.fit`, of which the last five count. The networks are
ours, built as official Keras examples are, or KerasHub's. Bytes are those that TensorFlow's allocator reports, weights
and the optimizer's slots included, and without the batch; a budget is a share of the plain step that tfgc predicts.

    python scripts/fit_budgets.py                # all networks
    python scripts/fit_budgets.py gan resnet50   # these
    python scripts/fit_budgets.py --table        # print the saved results

Results are saved in scripts/results/fit-budgets.json.
"""

import argparse
import json
import pathlib

import kerashub
import other_models

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
    "sample_cnn": (16, 64),
    "big_cnn(3, 3)": (8, 64),
}
OUTER = ("gan", "distiller", "shift_vit", "residual_net", "diffusion", "siamese")
HUB = ("vit", "gpt2", "t5", "whisper", "bert", "swin", "segformer", "resnet", "vae")
BUDGETS = ("85%", "70%", "60%", "50%", "40%")
RESULTS = pathlib.Path(__file__).parent / "results" / "fit-budgets.json"
STEPS, LAST = 8, 5


def main():
    known = (*FUNCTIONAL, *OUTER, *HUB)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", metavar="network", help="default: all")
    parser.add_argument("--table", action="store_true", help="print the saved results and measure nothing")
    arguments = parser.parse_args()
    if unknown := set(arguments.networks) - set(known):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; choose from: {', '.join(known)}")
    saved = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if not arguments.table:
        server = other_models.fork_server(kerashub.KERASHUB)
        for name in arguments.networks or known:
            saved[name] = {how: other_models.in_process(server, measure, name, how) for how in ("plain", *BUDGETS)}
            print(row(name, saved[name]), flush=True)
            ordered = {one: saved[one] for one in known if one in saved}
            RESULTS.write_text(json.dumps(ordered, indent=1) + "\n")
    print(*table(saved), sep="\n")


def table(saved):
    """Yield lines of Markdown: for each budget the measured peak as a share of it."""
    yield f"| network | plain, measured / predicted | {' | '.join(BUDGETS)} |"
    yield f"| --- | ---: |{' ---: |' * len(BUDGETS)}"
    for name, results in saved.items():
        yield row(name, results)


def row(name, results):
    plain = results["plain"].get("peak")
    if plain is None:
        return f"| {name} | {results['plain']['failed']} |{' |' * len(BUDGETS)}"
    predicted = next(r["predicted_plain"] for r in results.values() if "predicted_plain" in r)
    return (
        f"| {name} | {plain / 1e6:.0f} MB, {plain / predicted:.2f} | {' | '.join(cell(results[b]) for b in BUDGETS)} |"
    )


def cell(result):
    if "refused" in result:
        return "refused"
    if "failed" in result:
        return result["failed"].partition(":")[0]
    return f"{result['peak'] / result['budget']:.2f}"


def measure(name, how):
    """Train for some steps; return the largest peak of the last ones and what was predicted, in bytes."""
    import keras
    import tensorflow as tf

    import tfgc

    held, peaks = [], []

    def memory(which):
        return tf.config.experimental.get_memory_info("CPU:0")[which]

    class Peaks(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            tf.config.experimental.reset_memory_stats("CPU:0")
            held.append(memory("current"))

        def on_train_batch_end(self, batch, logs=None):
            peaks.append(memory("peak") - held[-1])

    keras.utils.set_random_seed(0)
    model, x, y = built(name)
    if how != "plain":
        tfgc.enable(model, budget=how, verbose=0)
    data = tf.data.Dataset.from_tensors(x if y is None else (x, y)).repeat(STEPS)
    try:
        model.fit(data, verbose=0, callbacks=[Peaks()])
    except tfgc.InfeasibleBudgetError as error:
        return {"refused": str(error).splitlines()[0]}
    optimizers = getattr(model, "optimizers", [model.optimizer])
    variables = {id(v): v for part in (model, *optimizers) for v in part.variables}.values()
    fixed = sum(tf.as_dtype(v.dtype).size * v.shape.num_elements() for v in variables)
    result = {"peak": max(peaks[-LAST:]) + fixed, "peaks": peaks, "held": held[-1], "fixed": fixed}
    if how != "plain":
        plan = tfgc.status(model).plans[0]
        result |= {
            "predicted": plan.predicted_bytes,
            "predicted_plain": plan.plain_bytes,
            "strategy": plan.plan.strategy,
        }
        result["budget"] = int(plan.plain_bytes * float(how.rstrip("%")) / 100)
    return result


def built(name):
    """A compiled model and random data for it."""
    import numpy as np
    import outer_models

    import tfgc.zoo

    if name in OUTER:
        return getattr(outer_models, name)()
    if name in HUB:
        model, x, y, loss = kerashub.MODELS[name]()
        model.compile("adam", loss, metrics=[], jit_compile=False)
        return model, x, y
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
