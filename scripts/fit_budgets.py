"""Measure whether budgets hold: in `fit`, in eager loops and in `tfgc.function`, by what the allocator reports.

Budgets are 85, 70 and 55 % of what the plain step is measured to need, weights and the optimizer's slots included, in a
process each. Eight steps run, of which those from the fourth on are judged. The networks are ours, built as official
Keras examples are, or KerasHub's; the steps for `tfgc.function` are those of scripts/other_steps.py.

    python scripts/fit_budgets.py                      # all cases
    python scripts/fit_budgets.py gan:fit sam:function  # these
    python scripts/fit_budgets.py --table              # print the saved results

Results are saved in scripts/results/fit-budgets.json.
"""

import statistics

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
WAYS = ("fit", "eager", "function")
CASES = (
    *(f"{name}:fit" for name in (*FUNCTIONAL, *OUTER, *HUB)),
    *(f"{name}:eager" for name in FUNCTIONAL),
    *(f"{name}:function" for name in ("gan", "sam", "maml", "pinn", "dqn", "moco", "vq_vae", "detr", "recurrent")),
)
SHARES = (85, 70, 55)
RESULTS = saved_cases.RESULTS / "fit-budgets.json"
STEPS, JUDGED = 8, 4


def run(case):
    """What the plain step needs, and how each budget went, as dictionaries."""
    found = {"plain": other_models.in_process(kerashub.KERASHUB, measure, case, None)}
    if "peaks" in found["plain"]:
        plain = max(found["plain"]["peaks"][JUDGED - 1 :])
        for share in SHARES:
            budget = plain * share // 100
            found[f"{share}%"] = other_models.in_process(kerashub.KERASHUB, measure, case, budget) | {"budget": budget}
    return found


def table(saved):
    """Lines of Markdown: for each case and budget the largest peak as a share of it, and for each way a summary."""
    heads = " | ".join(f"{share} %" for share in SHARES)
    lines = [f"| case | plain | {heads} |", f"| --- | ---: |{' ---: |' * len(SHARES)}"]
    lines += [row(case, results) for case, results in saved.items()]
    lines += [
        "",
        "| way | budgets | held | refused | largest excess | use, median | changes, median and most | above |",
    ]
    lines += ["| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"]
    return "\n".join([*lines, *(summary(way, saved) for way in WAYS)])


def row(case, results):
    if "peaks" not in results["plain"]:
        return f"| {case} | {results['plain']['failed'].partition(':')[0]} |{' |' * len(SHARES)}"
    plain = max(results["plain"]["peaks"][JUDGED - 1 :])
    return f"| {case} | {plain / 1e6:.0f} MB | {' | '.join(cell(results[f'{share}%']) for share in SHARES)} |"


def cell(result):
    if "peaks" not in result:
        return "refused" if "refused" in result else result["failed"].partition(":")[0]
    return f"{use(result):.3f}, {result['changes']} changes"


def use(result):
    """The largest peak of the steps that are judged, as a share of the budget."""
    return max(result["peaks"][JUDGED - 1 :]) / result["budget"]


def summary(way, saved):
    results = [
        r for case, found in saved.items() if case.endswith(f":{way}") for how, r in found.items() if how != "plain"
    ]
    ran = [r for r in results if "peaks" in r]
    if not ran:
        return f"| {way} | {len(results)} |" + " |" * 6
    # Where the plain step fits, there is nothing to use more.
    used = [use(r) for r in ran if use(r) <= 1 and r["overhead"]]
    above = [sum(peak > r["budget"] for peak in r["peaks"][: JUDGED - 1]) for r in ran]
    changes = [r["changes"] for r in ran]
    return (
        f"| {way} | {len(results)} | {sum(use(r) <= 1 for r in ran)} | {sum('refused' in r for r in results)} | "
        f"{max(0, *(use(r) - 1 for r in ran)):.1%} | {statistics.median(used or [0]):.2f} | "
        f"{statistics.median(changes):g}, {max(changes)} | {max(above)} |"
    )


def measure(case, budget):
    """What each of some steps needs, weights and slots included, and by which plan they run in the end."""
    import tfgc

    name, _, way = case.partition(":")
    try:
        return (_steps if way == "function" else _training)(name, budget, way == "eager")
    except tfgc.InfeasibleBudgetError as error:
        return {"refused": str(error).splitlines()[0]}


def _training(name, budget, eager):
    import keras

    import tfgc

    peaks = saved_cases.peaks()
    keras.utils.set_random_seed(0)
    model, x, y = built(name)
    model.run_eagerly = eager
    if budget is not None:
        tfgc.enable(model, budget=budget, verbose=0)
    model.fit(saved_cases.batches(x if y is None else (x, y), STEPS), verbose=0, callbacks=[peaks])
    optimizers = getattr(model, "optimizers", [model.optimizer])
    fixed = sum_of({id(v): v for part in (model, *optimizers) for v in part.variables}.values())
    plans = [] if budget is None else tfgc.status(model).plans
    return _found([peak + fixed for peak in peaks.found], plans)


def _steps(name, budget, eager):
    import keras
    import other_steps
    import tensorflow as tf

    import tfgc

    keras.utils.set_random_seed(0)
    step, inputs, variables = getattr(other_steps, name)()
    runs = tf.function(step) if budget is None else tfgc.function(step, budget=budget, verbose=0)
    fixed = sum_of({id(v): v for v in variables}.values()) + sum_of(inputs)
    runs.get_concrete_function(*inputs)  # traces, and makes variables
    needed = []
    for _ in range(STEPS):
        with tfgc.peak() as peak:
            runs(*inputs)
        needed.append(peak.peak_bytes - peak.held_bytes + fixed)
    return _found(needed, [] if budget is None else runs.status().traces)


def _found(peaks, plans):
    """The peaks, and of the plan that was used last how often it had changed, and its work."""
    last = plans[-1] if plans else None
    return {"peaks": peaks, "changes": last and last.changes, "overhead": last and last.overhead}


def sum_of(tensors):
    """Bytes of tensors or variables."""
    import tensorflow as tf

    return sum(tf.as_dtype(t.dtype).size * tf.TensorShape(t.shape).num_elements() for t in tf.nest.flatten(tensors))


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
    saved_cases.main(__file__, __doc__, CASES, RESULTS, None, row, table, run)
