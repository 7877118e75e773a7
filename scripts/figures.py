"""Draw the figures of README.md and docs/how-it-works.md into docs/images; measures nothing.

The README's figure shows the measured steps of scripts/results/resnet50_b16.json, the cases of the first row of its
table. The other one shows the plan that the example of docs/how-it-works.md makes, as simulated.

    python scripts/figures.py
"""

import contextlib
import dataclasses
import pathlib
import re

from tfgc import _units
from tfgc._records import results_json
from tfgc._report import plots, svg

ROOT = pathlib.Path(__file__).parent.parent
IMAGES = ROOT / "docs" / "images"
RESULTS = ROOT / "scripts" / "results" / "resnet50_b16.json"
PAGE = ROOT / "docs" / "how-it-works.md"
CASES = ("plain-eager", "plain-graph", "sqrt(6)-compiled", "sqrt(8)-graph")
PIXELS = 480  # at this width the text is as large as that of a page
STYLE = """
<style>
svg {
  --font: system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif;
  --card: #ffffff; --ink: #1b2229; --muted: #56616c; --line: #d7dde2; --s0: #0069a8; --s1: #b84a00;
}
@media (prefers-color-scheme: dark) {
  svg { --card: #1a2027; --ink: #e8ecf0; --muted: #a3aeb9; --line: #353f4a; --s0: #5bb8f0; --s1: #f5945c; }
}
</style>
<rect width="100%" height="100%" rx="4" style="fill: var(--card)"/>"""


def main():
    IMAGES.mkdir(exist_ok=True)
    for name, picture in pictures().items():
        (IMAGES / name).write_text(standalone(picture, name.partition(".")[0]))


def pictures():
    """Every figure, by the name of its file."""
    return {"memory-of-a-step.svg": measured(), "memory-of-a-plan.svg": predicted()}


def measured():
    """ResNet50 with and without tfgc, in an eager loop and in `tf.function`."""
    (study,) = results_json.read(RESULTS).studies
    found = {record.name: record for record in study.records}
    records = [found[name] for name in CASES]
    most = [record.resident_bytes + max(count for _, count in record.timeline) for record in records]
    peaks = list(map(_units.format_bytes, most))
    named = [r if r.case == "plain" else dataclasses.replace(r, case="tfgc") for r in records]
    words = (
        "Memory over one training step of ResNet50 at batch 16, weights included. In an eager loop the plain "
        f"step peaks at {peaks[0]} and tfgc's at {peaks[2]}; in tf.function the plain step peaks at {peaks[1]} and "
        f"tfgc's at {peaks[3]}."
    )
    return dataclasses.replace(plots.memory(dataclasses.replace(study, records=tuple(named))), alt_text=words)


def predicted():
    """The plan of the page's example against keeping everything."""
    import tfgc

    model, plan = example()
    plain, planned = tfgc.estimate(model, plan.batch_size), tfgc.estimate(model, plan.batch_size, plan)
    again = " and ".join(str(i) for i, segment in enumerate(plan.segments) if segment.mode == "recompute")

    def draw(figure):
        axes = figure.subplots()
        forward = {node for segment in plan.segments for node in segment.nodes}
        loss = max(work for work, _, name in plain.timeline if name in forward) / plain.work * 100
        for step, label, style in (
            (plain, "plain: everything is stored", {"color": svg.INK, "linestyle": (0, (6, 2))}),
            (planned, f"this plan: segments {again} are recomputed", {"color": svg.SERIES[0]}),
        ):
            work, counts, _ = zip(*step.timeline)
            ends = [*(done / plain.work * 100 for done in work), step.work / plain.work * 100]
            axes.step(ends, [count / 1e6 for count in (*counts, 0)], where="post", label=label, **style)
        axes.axvline(loss, color=svg.MUTED, linestyle=":", label="end of the forward pass")
        axes.set(xlabel="work done (% of the plain step)", ylabel="memory (MB)")
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        figure.legend(loc="outside lower left")

    words = (
        "Simulated memory over one training step, in bytes over the work done. The plain step climbs to "
        f"{_units.format_bytes(plain.activation_bytes)} in the forward pass and comes down in the backward pass. The "
        f"plan peaks at {_units.format_bytes(planned.activation_bytes)}, climbs once more for each segment that it "
        f"recomputes, and takes {planned.overhead:.0%} more work."
    )
    return svg.Plot("", "Memory over one training step, plain and by the plan", words, draw, 2.7)


def example():
    """The model and the plan of the page."""
    (source,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    names = {}
    with contextlib.redirect_stdout(None):
        exec(compile(source, PAGE, "exec"), names)
    return names["model"], names["plan"]


def standalone(picture, key):
    """The picture as a file that needs no page around it, in light and dark colours."""
    text = svg.svg(picture, key)
    width, height = (float(size) for size in re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', text).groups())
    size = f'width="{PIXELS}" height="{round(PIXELS * height / width)}"'
    head, end, rest = text.replace("<svg ", f'<svg xmlns="http://www.w3.org/2000/svg" {size} ', 1).partition("</desc>")
    return f"{head}{end}{STYLE}\n{rest.lstrip()}\n"


if __name__ == "__main__":
    main()
