"""Write docs/suites.md from the committed results of the benchmark suites; a test holds the page to them.

tfgc bench ogc -o scripts/results/ogc.json    # measure; a run that was interrupted goes on
python scripts/suites.py                      # write the page
"""

import dataclasses
import pathlib

from tfgc import _results, bench

HERE = pathlib.Path(__file__).parent
PAGE = HERE.parent / "docs" / "suites.md"
# In the order of the page; each measured, then predicted at the published batches, where there are results.
SUITES = ("ogc", "resnet-depth", "inception-v4", "max-batch", "tf2-eager", "segments", "peers")


# Why targets are missed, as far as it is known; by suite.
CAUSES = {
    "ogc": """
- Time: plans are made by floating-point operations. On this CPU BatchNormalization and ReLU cost few of them and about
  a quarter of a step's time, so that replays take longer than predicted; ResNet50's `optimal` was 22 % slower than
  plain in one run and 40 % in another, of the same plan. `tfgc bench ogc --measure` plans by seconds.
- ResNet101, nested: the peak came out half as much again as predicted. TensorFlow's executor runs what is ready, and in
  a replay of a replay more may be ready at once than the planner's order has; not shown.
- Inception v3: the published cut-off is beyond what its first layers need by themselves (the floor).
- AlexNet and VGG16 were run at a sixteenth of the batch, where the gradients of 61 and 138 million weights are as
  large as the activations; VGG16's dense layer of 411 MB is updated by a copy now and then, which moves its peaks.
- Rows that are not among the measured ones were not run, for want of time; their predictions stand below.
""",
    "resnet-depth": """
- At a batch of four the weights' gradients, which no plan changes, are a large part of the peak, and a replay's
  BatchNormalization a large part of the time; both shares fall at the study's batch, which takes this machine hours.
- ResNet18 at a batch of four: no plan tried reaches the floor of the whole step; it is 4 % away.
- ResNet152: `optimal` took 1.37 and 1.52 times as long as plain in two runs, at 18 % of the peak; times of this machine
  move that much. ResNet200 at the study's share was not run, for want of time.
""",
}
HEAD = """# Beside published figures

Each table is printed by `tfgc bench SUITE --table --markdown -o FILE` from the results in `scripts/results`. Published
figures are other people's on other machines, mostly GPUs: compare ratios, never times. What was measured here ran on a
CPU of two cores, one process a case, against the plain step in the same run, at a part of the published batch; that
machine moves times by 10 % and more. What was predicted is of the published batch. Misses stand in the tables as such.
"""


def page():
    """The text of the page."""
    parts = [HEAD]
    for suite in SUITES:
        files = {
            "Measured": HERE / "results" / f"{suite}.json",
            "Predicted": HERE / "results" / f"{suite}-predicted.json",
        }
        found = {kind: _results.read(path) for kind, path in files.items() if path.exists()}
        if found:
            parts.append(f"## {suite}\n\n{bench.get(suite).__doc__.strip()}\n")
        for kind, results in found.items():
            for sheet in bench.get(suite).sheets(results):
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
