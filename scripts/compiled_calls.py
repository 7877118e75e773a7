"""Compile models of KerasHub that are planned by the calls of their layers for a GPU that is not there.

Each as plain Keras trains it (SGD), by the plan of least peak for XLA, and within 70 % and 50 % of the plain compiled
step. Nothing is run. Models have random weights; KerasHub is installed as by scripts/kerashub.py. It takes XLA's GPU
compiler, in the environment of scripts/compile_tests.sh:

    .venv-compile/bin/python scripts/compiled_calls.py           # all models, about five minutes on two cores
    .venv-compile/bin/python scripts/compiled_calls.py swin vae  # these models
    python scripts/compiled_calls.py --table                     # print the saved results

Results are saved in scripts/results/compiled-calls.json.
"""

import argparse
import json

import kerashub
import other_models

MODELS = ("vit_s16", "vitdet", "swin", "vae")
TARGET = "h100"
BUDGETS = ("70%", "50%")
RESULTS = kerashub.KERASHUB.results.with_name("compiled-calls.json")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="model", help=f"of {', '.join(MODELS)}; default: all")
    parser.add_argument("--table", action="store_true", help="print the table of the saved results and compile nothing")
    arguments = parser.parse_args()
    if unknown := set(arguments.models) - set(MODELS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; choose from: {', '.join(MODELS)}")
    saved = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if not arguments.table:
        server = other_models.fork_server(kerashub.KERASHUB)
        for name in arguments.models or MODELS:
            saved[name] = other_models.in_process(server, compiled, name)
            print(name, saved[name], flush=True)
            RESULTS.write_text(json.dumps(saved, indent=1) + "\n")
    print(*table(saved), sep="\n")


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
            "compiled": found.temp_bytes, "predicted": step.peak_bytes - weights, "overhead": step.overhead,
            "by": None if plan is None else "calls" if plan.calls else "nodes", "compiler": found.compiler,
        }  # fmt: skip
        if budget is not None:
            rows[side]["holds"] = found.temp_bytes + weights <= budget
    return rows


def table(saved):
    """Yield lines of Markdown."""
    yield "| model | step | planned by | compiled | of plain | predicted | off by | overhead | budget |"
    yield "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | --- |"
    for name, rows in saved.items():
        if "failed" in rows:
            yield f"| {name} | {rows['failed']} | - | - | - | - | - | - | - |"
            continue
        plain = rows["plain"]["compiled"]
        for side, row in rows.items():
            if "failed" in row:
                yield f"| {name} | {side} | {row['failed']} | - | - | - | - | - | - |"
                continue
            made, predicted = row["compiled"], row["predicted"]
            budget, off = {True: "holds", False: "missed", None: "-"}[row.get("holds")], predicted / made - 1
            yield (
                f"| {name} | {side} | {row['by'] or '-'} | {made / 1e6:.0f} MB | {made / plain:.0%} "
                f"| {predicted / 1e6:.0f} MB | {round(100 * off):+}% | {row['overhead']:.0%} | {budget} |"
            )


if __name__ == "__main__":
    main()
