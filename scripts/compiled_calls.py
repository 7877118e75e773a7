"""Compile models of KerasHub that are planned by the calls of their layers for a GPU that is not there.

Each as plain Keras trains it (SGD), by the plan of least peak for XLA, and within 70 % and 50 % of the plain compiled
step. Nothing is run. Models have random weights; KerasHub is installed as by scripts/kerashub.py. It takes XLA's GPU
compiler, in the environment of scripts/compile_tests.sh:

    .venv-compile/bin/python scripts/compiled_calls.py           # all models, about five minutes on two cores
    .venv-compile/bin/python scripts/compiled_calls.py swin vae  # these models
    python scripts/compiled_calls.py --table                     # print the saved results

Results are saved in scripts/results/compiled-calls.json.
"""

import kerashub
import other_models
import saved_cases

MODELS = ("vit_s16", "vitdet", "swin", "vae")
TARGET = "h100"
BUDGETS = ("70%", "50%")
RESULTS = kerashub.KERASHUB.results.with_name("compiled-calls.json")


def run(name):
    return other_models.in_process(kerashub.KERASHUB, compiled, name)


def vit_s16():
    """ViT-S/16 at 224 pixels."""
    from keras_hub.models import ViTBackbone, ViTImageClassifier

    backbone = ViTBackbone(
        image_shape=(224, 224, 3), patch_size=16, num_layers=12, num_heads=6, hidden_dim=384, mlp_dim=1536
    )
    model = ViTImageClassifier(backbone, num_classes=10)
    return model, other_models.numbers((16, 224, 224, 3)), other_models.numbers((16,), 10), kerashub.classes()


def compiled(name):
    """The bytes of each step of a model, as compiled and as predicted, without weights and batch."""
    import keras

    import tfgc
    from tfgc._planning import budgets

    keras.utils.set_random_seed(1)
    model, x, y, loss = (globals().get(name) or kerashub.MODELS[name])()
    model.compile("sgd", loss)
    model.optimizer.build(model.trainable_variables)
    weights, rows = budgets.fixed_bytes(model), {}
    for side in ("plain", "least", *BUDGETS):
        plan, budget = None, None
        if side in BUDGETS:
            budget = int(float(side[:-1]) / 100 * (rows["plain"]["compiled"] + weights))
        try:
            if side != "plain":
                plan = tfgc.plan(model, example=(x, y), mode="xla", budget=budget)
            found = tfgc.compiled_memory(model, plan=plan, example=(x, y), target=TARGET)
        except tfgc.TfgcError as error:
            rows[side] = {"failed": type(error).__name__}
            continue
        step = tfgc.estimate(model, plan=plan, example=(x, y), mode="xla")
        rows[side] = {
            "compiled": found.temp_bytes, "predicted": step.allocated_bytes - weights, "overhead": step.overhead,
            "by": None if plan is None else "calls" if plan.calls else "nodes", "compiler": found.compiler,
        }  # fmt: skip
        if budget is not None:
            rows[side]["holds"] = found.temp_bytes + weights <= budget
    return rows


def table(saved):
    """Lines of Markdown."""
    lines = [
        "| model | step | planned by | compiled | of plain | predicted | off by | overhead | budget |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    return "\n".join([*lines, *(row(name, rows) for name, rows in saved.items())])


def row(name, rows):
    """The lines of a model."""
    if "failed" in rows:
        return f"| {name} | {rows['failed']} | - | - | - | - | - | - | - |"
    plain, lines = rows["plain"]["compiled"], []
    for side, step in rows.items():
        if "failed" in step:
            lines.append(f"| {name} | {side} | {step['failed']} | - | - | - | - | - | - |")
            continue
        made, predicted = step["compiled"], step["predicted"]
        budget, off = {True: "holds", False: "missed", None: "-"}[step.get("holds")], predicted / made - 1
        lines.append(
            f"| {name} | {side} | {step['by'] or '-'} | {made / 1e6:.0f} MB | {made / plain:.0%} "
            f"| {predicted / 1e6:.0f} MB | {round(100 * off):+}% | {step['overhead']:.0%} | {budget} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    saved_cases.main(__file__, __doc__, MODELS, RESULTS, None, row, table, run)
