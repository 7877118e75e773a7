"""Write docs/published-results.md, and the table of docs/gpus.md, from the saved results of the benchmark suites.

A test compares the pages with them.

tfgc bench ogc -o scripts/results/ogc.json    # measure; resumes an interrupted run
python scripts/suites.py                      # write the pages
"""

import dataclasses
import pathlib

from tfgc import _suites
from tfgc._records import results_json
from tfgc._report import markdown

HERE = pathlib.Path(__file__).parent
PAGE = HERE.parent / "docs" / "published-results.md"
GPUS = HERE.parent / "docs" / "gpus.md"
COMPILED = "## What was compiled\n"  # its heading; the table is the rest of the page
# In the order of the page; each measured, then predicted at the published batches, where there are results.
SUITES = ("ogc", "resnet-depth", "inception-v4", "hybrid", "max-batch", "tf2-eager", "segments", "peers")


# Why targets are missed, as far as it is known; by suite.
CAUSES = {
    "ogc": """
- Time: plans minimize floating-point operations, except in the rows that the commands above name with `--measure`. On
  this CPU, BatchNormalization takes a third of the time of a forward pass but hardly any of its operations, so a replay
  takes longer than predicted. With the same plan, ResNet50's `optimal` was 22 % slower than plain in one run and 40 %
  in another. These results are from before layers were timed within a step: timed one by one they take longer, so their
  predictions in seconds are too high.
- Inception v3: the published cut-off is beyond the floor, which is what its first layers need on their own.
- NASNet-A with one replay: the plan took 8 % more than predicted, and the plain step 4 % less. The order of its many
  branches is not the cause: segments that were made to wait for each other needed as much.
- Eager loops: the gradients of all weights wait for the end of a step. At a batch of four they are a large part of the
  remaining memory in ResNet152 (60 million weights), DenseNet201 (20) and DenseNet161 (29). Inception v3 is at its
  floor.
- ResNet152, nested, at a batch of four: the gradients of the same weights, and the prediction is 1.7 points too high.
- AlexNet and the VGGs: at a fraction of the batch, the gradients of 61 to 144 million weights are as large as the
  activations. `optimal` minimizes activations, and is far above the floor of the whole step there; nested plans are
  predicted to be at the floor. The measured peaks vary by hundreds of megabytes from step to step, also in plain steps:
  TensorFlow copies a large weight if its update comes before its last reader (see
  [Known limitations](limitations.md)).
""",
    "resnet-depth": """
- At a batch of four, the weights' gradients, which no plan changes, are a large part of the peak, and the
  BatchNormalization of the replay is a large part of the time. Both shares fall at the batch of the study, which takes
  this machine hours.
- ResNet18 at a batch of four: no plan that we tried reaches the floor of the whole step; the best is 4 % above it.
- ResNet152: `optimal` took 1.37 and 1.52 times as long as plain in two runs, at 18 % of the peak; times on this machine
  vary that much. ResNet200 at the fraction used in the study was not run, for lack of time.
""",
    "hybrid": """
- ResNet18 and 34: the first BatchNormalization alone sets the floor, 514 MB of the 758 and 1,046 MB that plain steps
  are predicted to need, and no store on the host lowers it: slices do not cross it. In the study recomputation made
  ResNet18 faster than its plain step.
- ResNet200: its plain step ran out of memory in the study, so that its goal is that of 152 layers.
- `offload` stores only what no replay waits for, and is judged by buffers: the allocator may serve it with more than
  `optimal`.
""",
}
INTRODUCTION = """
`tfgc bench gpu-compile` compiles twelve networks for an H100: plain, with the least peak, and within 70 % and 50 % of
the plain compiled step. Nothing of it was run on a GPU.

All predictions are within 12 %, and all budgets hold. Furthest off are the U-Net's least peak and plain step and that
of InceptionV3, 9 to 12 % too high: the model holds activations a little longer than XLA does. EfficientNetB0's least
peak is 9 % too low, since its heap has larger gaps. The rules were read from steps of these networks. Of others (`tfgc
compile`, budgets in bytes), the steps of EfficientNetV2B0 (batch 16) are within 10 %. VGG16's plain step (8) is
predicted 15 % too high, and the least peak of sample_cnn (8) 28 % too low; its plans exceed 70 % by 4 % and 50 % by
20 %: where windows of pooling do not overlap, XLA looks for the maxima again, and stores four numbers for each.
""".lstrip()
HEAD = """# Reproducing published results

`tfgc bench SUITE --table --markdown -o FILE` prints each table from the results in `scripts/results`. The published
figures come from other machines, mostly GPUs: compare ratios, never times. Our measurements ran on a CPU with two
cores, one process per case, against the plain step of the same run (a network that two commands name ran twice), at a
fraction of the published batch. Times on that machine vary by 10 % and more. Predictions are for the published batch.
The sentences before the tables are also made from the results: they say what held and what did not.
"""


def page():
    """Return the text of the page."""
    parts = [HEAD]
    for suite in SUITES:
        files = {
            "Measured": HERE / "results" / f"{suite}.json",
            "Predicted": HERE / "results" / f"{suite}-predicted.json",
        }
        found = {kind: results_json.read(path) for kind, path in files.items() if path.exists()}
        if found:
            parts.append(f"## {suite}\n\n{_suites.get(suite).__doc__.strip()}\n")
        for kind, results in found.items():
            for sheet in _suites.get(suite).sheets(results):
                parts.append(markdown.table(dataclasses.replace(sheet, title=f"{kind}: {sheet.title}")))
            parts.append(f"{kind} with {_versions(results)}, by:\n\n```text\n{results.command}\n```\n")
        if suite in CAUSES:
            parts.append(f"### Why targets are missed ({suite})\n{CAUSES[suite]}")
    return "\n".join(parts)


def gpus():
    """Return the text of the page on GPUs, with the table of compiled steps."""
    results = results_json.read(HERE / "results" / "gpu-compile.json")
    (sheet,) = _suites.get(results.suite).sheets(results)
    compilers = {record.machine["compiler"] for study in results.studies for record in study.records if record.machine}
    text, _, _ = GPUS.read_text().partition(COMPILED)
    return (
        f"{text}{COMPILED}\n{INTRODUCTION}\n{markdown.table(sheet)}\n"
        f"Compiled by {', '.join(sorted(compilers))}:\n\n```text\n{results.command}\n```\n"
    )


def _versions(results):
    """List the versions that the records ran on."""
    ran = [record for study in results.studies for record in study.records if record.machine]
    machine = {key: value for record in ran for key, value in record.machine.items()}
    told = [f"{name} {machine[name]}" for name in ("tensorflow", "keras", "torch", "python") if name in machine]
    return ", ".join(told) or "no step run"


if __name__ == "__main__":
    PAGE.write_text(page())
    GPUS.write_text(gpus())
