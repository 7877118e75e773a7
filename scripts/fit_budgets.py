"""Measure whether budgets hold in `fit`: `tfgc.enable(model, budget=...)` is all that is added to a Keras program.

Runs one process for each network and budget: eight steps of `model.fit`, of which the last five count. The batch size
is open, as it is in `fit` on arrays. The networks are ours, built as official Keras examples are, or KerasHub's. Bytes
are those that TensorFlow's allocator reports, weights and the optimizer's slots included, and without the batch; a
budget is a share of the plain step that tfgc predicts.

    python scripts/fit_budgets.py                # all networks
    python scripts/fit_budgets.py gan resnet50   # these
    python scripts/fit_budgets.py --table        # print the saved results

Results are saved in scripts/results/fit-budgets.json.
"""

import kerashub
import other_models
import saved_cases

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
RESULTS = saved_cases.RESULTS / "fit-budgets.json"
STEPS, LAST = 8, 5


def run(name):
    return {how: other_models.in_process(kerashub.KERASHUB, measure, name, how) for how in ("plain", *BUDGETS)}


def table(saved):
    """Lines of Markdown: for each budget the measured peak as a share of it."""
    heads = f"| network | plain, measured / predicted | {' | '.join(BUDGETS)} |"
    rows = (row(name, results) for name, results in saved.items())
    return "\n".join([heads, f"| --- | ---: |{' ---: |' * len(BUDGETS)}", *rows])


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


def measure(name, how, eager=False):
    """Train for some steps, in Python if `eager`; return the largest peak of the last ones and what was predicted."""
    import keras
    import tensorflow as tf

    import tfgc

    peaks = saved_cases.peaks()
    keras.utils.set_random_seed(0)
    model, x, y = built(name)
    model.run_eagerly = eager
    if how != "plain":
        tfgc.enable(model, budget=how, verbose=0)
    data = saved_cases.batches(x if y is None else (x, y), STEPS)
    try:
        model.fit(data, verbose=0, callbacks=[peaks])
    except tfgc.InfeasibleBudgetError as error:
        return {"refused": str(error).splitlines()[0]}
    optimizers = getattr(model, "optimizers", [model.optimizer])
    variables = {id(v): v for part in (model, *optimizers) for v in part.variables}.values()
    fixed = sum(tf.as_dtype(v.dtype).size * v.shape.num_elements() for v in variables)
    result = {"peak": max(peaks.found[-LAST:]) + fixed, "peaks": peaks.found, "held": peaks.held[-1], "fixed": fixed}
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
    saved_cases.main(__file__, __doc__, (*FUNCTIONAL, *OUTER, *HUB), RESULTS, None, row, table, run)
