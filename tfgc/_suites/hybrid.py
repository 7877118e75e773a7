"""What slices of the batch and host memory add to recomputation, compared with a TF1 study and with OGC (2021).

The study's swapping and its hybrid store on the host as well. `offload` has the least peak of which no copy is waited
for; `hybrid` is the plan of least work at the goal, in which segments may also run in eight slices of the batch.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

from tfgc._records.measurement import Results, Study
from tfgc._records.table import TextTable
from tfgc._suites import _figures, _rows
from tfgc._suites.resnet_depth import DEPTHS
from tfgc._units import format_bytes, format_percent

# Of the link to the host in bytes a second, in each direction, and of the device in flops a second.
_LINK = {"bandwidth": 12e9, "speed": 8e12}
_SLICES = {"slices": 8}
_POINTS = 30
_PLAIN_NETWORKS = ("alexnet", "vgg11", "vgg13", "vgg16", "vgg19")
# The one of them that is run, at a part of its batch.
_RUN = "alexnet"
_LABELS = {"optimal-graph": "optimal", "offload-graph": "offload", "hybrid-graph": "hybrid"}
_HEADS = (
    "network, batch", "goal", "at time", "of", *(f"{label}{more}" for label in _LABELS.values()
    for more in (" peak", " time")), "offload, on the host", "hybrid, on the host", "outcome",
)  # fmt: skip
_LEGEND = (
    "Activations' peak and time as shares and multiples of the plain step's. goal: the least peak in the study at "
    "batch 32, whichever way ('of'), or 30 points below OGC's, at no more than the published time. tfgc's figures are "
    f"predictions for the step in tf.function, at a link of {_LINK['bandwidth'] / 1e9:.0f} GB a second in each "
    f"direction and {_LINK['speed'] / 1e12:.0f} Tflop a second; without a '~' they were measured here, and use no link."
)


def rows(scale: float) -> list[_rows.SuiteRow]:
    """ResNets and Inception v4 at the study's batch, AlexNet and VGG at OGC's: predicted, whatever the scale."""
    made = [_row(*found, _LINK) for found in [*_study(), *_plain_networks()]]
    network, batch, goal = next(found for found in _plain_networks() if found[0] == _RUN)
    plain, optimal, _, sliced = _row(network, _rows.scaled(batch, scale), goal, {}).cases
    sliced = dataclasses.replace(sliced, strategy="budget")  # nothing is copied on a CPU
    return [*made, _rows.SuiteRow((plain, optimal, sliced), goal)]


def _row(network: str, batch: int, goal: dict[str, Any], link: dict[str, float]) -> _rows.SuiteRow:
    plain, optimal, offload, hybrid = _rows.cases(network, batch, "plain-graph", *_LABELS)
    offload = dataclasses.replace(offload, options=link)
    share = round(_rows.MARGIN * goal["goal_share"], 4)
    hybrid = dataclasses.replace(hybrid, options={**link, **_SLICES}, target_ratio=share)
    return _rows.SuiteRow((plain, optimal, offload, hybrid), goal, predicted=True)


def _study() -> Iterator[tuple[str, int, dict[str, Any]]]:
    """The least peak in the study; at 200 layers, where its plain step ran out of memory, the figures at 152."""
    table = {(row["system"], row["depth"]): row for row in _rows.published("tf1_resnet_depth")}
    goal: dict[str, Any] = {}
    for depth in DEPTHS:
        if table["plain", depth]["activation_mb"] != "oom":
            goal = _least({system: row for (system, at), row in table.items() if at == depth})
        yield f"resnet{depth}", 32, goal
    yield "inception_v4", 32, _least({row["system"]: row for row in _rows.published("tf1_inception_v4")})


def _least(systems: dict[str, dict[str, Any]]) -> dict[str, Any]:
    plain = systems.pop("plain")
    system, row = min(systems.items(), key=lambda item: item[1]["activation_mb"])
    return {
        "goal_share": row["activation_mb"] / plain["activation_mb"],
        "goal_times": row["step_s"] / plain["step_s"],
        "goal_of": f"study: {system.removesuffix('_ome')}",
    }


def _plain_networks() -> Iterator[tuple[str, int, dict[str, Any]]]:
    for row in _rows.published("ogc_cvpr2021"):
        if row["network"] in _PLAIN_NETWORKS:
            share, times = 1 - (row["cut_off_pct"] + _POINTS) / 100, 1 + row["overhead_pct"] / 100
            yield row["network"], row["batch"], {"goal_share": share, "goal_times": times, "goal_of": "OGC"}


def sheets(results: Results) -> list[TextTable]:
    """One table, a row a network."""
    verdicts = {_figures.heading(study): _verdict(study) for study in results.studies}
    verdicts = {name: "met" if found.startswith("met") else found for name, found in verdicts.items()}
    summary = _figures.outcome("The goal, by a smaller peak in no more time", verdicts)
    return [_figures.table("Slices and host memory", _HEADS, map(_cells, results.studies), _LEGEND, summary)]


def _cells(study: Study) -> list[str]:
    goal = study.published
    cells = [_figures.heading(study), format_percent(goal["goal_share"]), _figures.times(goal["goal_times"])]
    cells.append(str(goal["goal_of"]))
    for name in _LABELS:
        sign = "" if _figures.measured(study, name) else "~ "
        for which in (0, 1):
            found = _figures.text(_figures.known(study, name), which)
            cells.append(_figures.status(study, name) or (found and sign + found))
    for name in ("offload-graph", "hybrid-graph"):
        record = study.record(name)
        host = record.predicted.host_bytes if record is not None and record.predicted is not None else 0
        cells.append(format_bytes(host) if host else "")
    return [*cells, _verdict(study)]


def _verdict(study: Study) -> str:
    """Which plans meet the goal; else by how much the closest one misses it."""
    met, missed = [], []
    for name, label in _LABELS.items():
        figures = _figures.known(study, name)
        if figures is None:
            continue
        excess = [figures[0] - study.published["goal_share"], figures[1] - study.published["goal_times"]]
        if max(excess) <= 0:
            met.append(label)
        else:
            missed.append((sum(max(0.0, each) for each in excess), excess))
    if met:
        return f"met by {', '.join(met)}"
    return _figures.verdict(*zip(min(missed)[1], ("share", "time"))) if missed else ""
