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


HEAD = """# Beside published figures

Each table is printed by `tfgc bench SUITE --table --markdown -o scripts/results/FILE` from committed results. Published
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
    return "\n".join(parts)


def _versions(results):
    """What the records ran on."""
    ran = [record for study in results.studies for record in study.records if record.machine]
    machine = {key: value for record in ran for key, value in record.machine.items()}
    told = [f"{name} {machine[name]}" for name in ("tensorflow", "keras", "torch", "python") if name in machine]
    return ", ".join(told) or "no step run"


if __name__ == "__main__":
    PAGE.write_text(page())
