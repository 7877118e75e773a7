"""Write docs/published-results.md from the committed results of the benchmark suites; a test holds the page to them.

tfgc bench ogc -o scripts/results/ogc.json    # measure; a run that was interrupted goes on
python scripts/suites.py                      # write the page
"""

import dataclasses
import pathlib

from tfgc import _suites
from tfgc._records import measurement

HERE = pathlib.Path(__file__).parent
PAGE = HERE.parent / "docs" / "published-results.md"
# In the order of the page; each measured, then predicted at the published batches, where there are results.
SUITES = ("ogc", "resnet-depth", "inception-v4", "max-batch", "tf2-eager", "segments", "peers")


# Why targets are missed, as far as it is known; by suite.
CAUSES = {
    "ogc": """
- Time: plans are made by floating-point operations, but for the rows that the commands above name with `--measure`. On
  this CPU BatchNormalization is a third of a forward pass's time and next to none of its operations, so that a replay
  takes longer than predicted; ResNet50's `optimal` was 22 % slower than plain in one run and 40 % in another, of the
  same plan. Layers timed one by one take longer than within a step: predictions in seconds are too high.
- Inception v3: the published cut-off is beyond what its first layers need by themselves (the floor).
- NASNet-A at one replay: the plan took 8 % more than predicted, and the plain step 4 % less. It is not the order of
  its many branches: segments made to wait for each other needed as much.
- Eager loops: the gradients of all weights wait for the end of a step. At a batch of four they are a large part of what
  is left with ResNet152 (60 million weights), DenseNet201 (20) and DenseNet161 (29). Inception v3 is at its floor.
- ResNet152, nested, at a batch of four: the same weights' gradients, and the prediction is 1.7 points too high.
- AlexNet and the VGGs: at a part of the batch the gradients of 61 to 144 million weights are as large as the
  activations. `optimal`, the least activations, is far above the whole step's floor there, nested plans are at it, by
  prediction. Their measured peaks move by hundreds of megabytes from step to step, in plain steps, too: TensorFlow
  copies a large weight when its update comes before its last reader (see [Known limitations](limitations.md)).
""",
    "resnet-depth": """
- At a batch of four the weights' gradients, which no plan changes, are a large part of the peak, and a replay's
  BatchNormalization a large part of the time; both shares fall at the study's batch, which takes this machine hours.
- ResNet18 at a batch of four: no plan tried reaches the floor of the whole step; it is 4 % away.
- ResNet152: `optimal` took 1.37 and 1.52 times as long as plain in two runs, at 18 % of the peak; times of this machine
  move that much. ResNet200 at the study's share was not run, for want of time.
""",
}
HEAD = """# Reproducing published results

Each table is printed by `tfgc bench SUITE --table --markdown -o FILE` from the results in `scripts/results`. Published
figures are other people's on other machines, mostly GPUs: compare ratios, never times. What was measured here ran on a
CPU of two cores, one process a case, against the plain step in the same run (a network that two commands name: in two),
at a part of the published batch; that machine moves times by 10 % and more. What was predicted is of the published
batch. Misses stand in the tables as such.
"""


def page():
    """The text of the page."""
    parts = [HEAD]
    for suite in SUITES:
        files = {
            "Measured": HERE / "results" / f"{suite}.json",
            "Predicted": HERE / "results" / f"{suite}-predicted.json",
        }
        found = {kind: measurement.read(path) for kind, path in files.items() if path.exists()}
        if found:
            parts.append(f"## {suite}\n\n{_suites.get(suite).__doc__.strip()}\n")
        for kind, results in found.items():
            for sheet in _suites.get(suite).sheets(results):
                parts.append(dataclasses.replace(sheet, title=f"{kind}: {sheet.title}").markdown())
            parts.append(f"{kind} by, with {_versions(results)}:\n\n```text\n{results.command}\n```\n")
        if suite in CAUSES:
            parts.append(f"### Why targets are missed ({suite})\n{CAUSES[suite]}")
    return "\n".join(parts)


def _versions(results):
    """What the records ran on."""
    ran = [record for study in results.studies for record in study.records if record.machine]
    machine = {key: value for record in ran for key, value in record.machine.items()}
    told = [f"{name} {machine[name]}" for name in ("tensorflow", "keras", "torch", "python") if name in machine]
    return ", ".join(told) or "no step run"


if __name__ == "__main__":
    PAGE.write_text(page())
