"""The tables: which networks, what others published of them, and what is run next to that. To add one: `TABLES`."""

import csv
import dataclasses
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import runs

_PUBLISHED = pathlib.Path(__file__).parent / "published"
_MODES = {"graph": "plain-graph", "compiled": "plain-eager"}  # each with the plain step that it is compared with
# Of the link to the host in bytes a second, in each direction, and of the device in flops a second.
_LINK = {"bandwidth": 12e9, "speed": 8e12}
_OPTIMAL, _NESTED = {"strategy": "optimal"}, {"strategy": "budget", "share": 0}


@dataclasses.dataclass(frozen=True)
class Row:
    """A network at its published batch; `published` has shares and times of the plain step by system, first the one
    whose share plans are asked for."""

    network: str
    batch: int
    published: Mapping[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    image_size: int | None = None

    @property
    def source(self):
        """As `tfgc.zoo.build` takes it."""
        import networks  # with Keras, which the list does without

        return f"networks:{self.network}" if self.network in networks.PARAMETERS else self.network


@dataclasses.dataclass(frozen=True)
class Plans:
    """A table of plans, each cell a share of the plain step's peak above weights and a multiple of its time."""

    about: str
    takes: str
    rows: Callable[[], list[Row]]
    plans: Mapping[str, Mapping[str, Any]]  # as `runs.plan_cases` takes them; share "published" is that of the row
    modes: tuple[str, ...] = ("graph",)
    packages: str = ""
    scale: float = 0.125  # the part of the published batch that is run; predictions are for all of it
    can_run: bool = True

    def measure(self, row, batch, steps, predict):
        """The figures of a row."""
        asked = {name: dict(how) for name, how in self.plans.items()}
        for how in asked.values():
            if how.get("share") == "published":
                how["share"] = next(iter(row.published.values()))[0]
        predicted = runs.plan_cases(row.source, row.image_size, batch, asked)
        plans = {name: found.pop("plan") for name, found in predicted.items() if "plan" in found}
        if predict or not self.can_run:
            return {"batch": batch, "predicted": predicted}
        measured = runs.measure_cases(row.source, row.image_size, batch, plans, self.modes, steps)
        return {"batch": batch, "predicted": predicted, "measured": measured}

    def lines(self, saved):
        """Markdown of what is saved, and in how many networks each case takes no more than what is published first."""
        rows = [row for row in self.rows() if row.network in saved]
        systems = list(dict.fromkeys(system for row in rows for system in row.published))
        cases = [f"{name}-{mode}" for name in self.plans for mode in self.modes]
        heads = ["network, batch", "weights of the plain step", *systems, *cases]
        yield "| " + " | ".join(heads) + " |"
        yield "| --- " * len(heads) + "|"
        held = {case: [0, 0, 0] for case in cases}
        for row in rows:
            found = saved[row.network]
            plain, cells = found["predicted"]["plain"], [_cell(row.published.get(system)) for system in systems]
            for case in cases:
                ours, text = _ours(found, case)
                cells.append(text)
                if ours and row.published:
                    share, times = next(iter(row.published.values()))
                    held[case][0] += ours[0] <= share
                    held[case][1] += ours[0] <= share and ours[1] <= times
                    held[case][2] += 1
            head = f"{row.network}, {found['batch']}", f"{plain['fixed'] / plain['bytes']:.0%}"
            yield "| " + " | ".join([*head, *cells]) + " |"
        yield ""
        for case, (less, both, count) in held.items():
            if count:
                yield f"- {case}: no more memory than {systems[0]} in {less} of {count}, in no more time in {both}."


def _cell(figures, sign=""):
    return f"{sign}{figures[0]:.1%} x {figures[1]:.2f}" if figures else "-"


def _ours(found, case):
    """Share and times of a case, measured or else predicted (behind ~), and their cell."""
    name, _, mode = case.rpartition("-")
    predicted, measured = found["predicted"].get(name, {}), found.get("measured", {})
    if "error" in predicted:
        return None, "no plan"
    foretold = predicted["share"], predicted["times"]
    host = f", {predicted['host'] / 1e9:.1f} GB on the host" if predicted["host"] else ""
    if case not in measured:
        return (foretold, _cell(foretold, "~ ") + host) if mode == "graph" else (None, "-")
    ours, plain = measured[case], measured[_MODES[mode]]
    if ours["status"] != "ok" or plain["status"] != "ok":
        return None, ours["status"] if plain["status"] == "ok" else f"plain {plain['status']}"
    figures = ours["peak"] / plain["peak"], ours["seconds"] / plain["seconds"]
    return figures, f"{_cell(figures)} ({_cell(foretold, '~ ')})"


def published(name):
    """The rows of a table that others published, numbers as such."""
    with open(_PUBLISHED / f"{name}.csv", newline="") as file:
        return [{key: _number(value) for key, value in row.items()} for row in csv.DictReader(file)]


def _number(text):
    try:
        return float(text)
    except ValueError:
        return text


def _ogc():
    return [
        Row(row["network"], int(row["batch"]), {"OGC": (1 - row["cut_off_pct"] / 100, 1 + row["overhead_pct"] / 100)},
            300 if row["network"] == "inception_v3" else None)
        for row in published("ogc_cvpr2021")
    ]  # fmt: skip


def _study(rows):
    """Shares and times of the systems of the TF1 study; those of its plain step are 1."""
    plain = next(row for row in rows if row["system"] == "plain")
    if plain["activation_mb"] == "oom":
        return {}
    return {
        row["system"].removesuffix("_ome"): (
            row["activation_mb"] / plain["activation_mb"], row["step_s"] / plain["step_s"]
        )
        for row in rows if row is not plain
    }  # fmt: skip


def _depths():
    table = published("tf1_resnet_depth")
    depths = dict.fromkeys(int(row["depth"]) for row in table)
    found = [Row(f"resnet{depth}", 32, _study([row for row in table if row["depth"] == depth])) for depth in depths]
    # The plain step of 200 layers ran out of memory in the study.
    return [row if row.published else dataclasses.replace(row, published=before.published) for before, row in
            zip([found[0], *found], found)]  # fmt: skip


def _inception():
    return [Row("inception_v4", 32, _study(published("tf1_inception_v4")))]


def _eager():
    names = {"sample_cnn": "sample_cnn", "vgg16": "vgg16", "big_cnn_3x3": "big_cnn(3, 3)"}
    table, rows = published("tf2_eager_2020"), []
    for known_as, name in names.items():
        plain, theirs = (row for row in table if row["network"] == known_as)
        base = plain["base_mib"]
        share = (theirs["peak_mib"] - (theirs["base_mib"] or base)) / (plain["peak_mib"] - base)
        rows.append(Row(name, int(plain["batch"]), {"TF2 eager": (share, theirs["step_s"] / plain["step_s"])}))
    return rows


def _segments():
    # At 32 pixels VGG16 has 33 million weights and little else.
    return [Row("sample_cnn", 16), Row("vgg16", 16, image_size=32)]


def _hybrid():
    """The least peak of the study whichever way, and 30 points less than OGC for networks of plain convolutions."""
    rows = [
        dataclasses.replace(row, published={"goal": min(row.published.values())}) for row in (*_depths(), *_inception())
    ]
    for row in _ogc():
        if row.network in ("alexnet", "vgg11", "vgg13", "vgg16", "vgg19"):
            share, times = row.published["OGC"]
            rows.append(dataclasses.replace(row, published={"goal": (share - 0.3, times)}))
    return rows


@dataclasses.dataclass(frozen=True)
class LargestBatch:
    """The largest batch in a budget."""

    about: str
    takes: str
    packages: str = ""
    scale: float = 0.1

    def rows(self):
        most = max(row["peak_mb"] for row in published("tf1_max_batch_resnet50"))
        return [Row("resnet50", int(most * 1e6))]  # of the budget in place of a batch

    def measure(self, row, batch, steps, predict):
        return runs.in_process(_largest, row.source, batch, steps, predict)

    def lines(self, saved):
        yield "| system | largest batch | times plain |\n| --- | ---: | ---: |"
        table = published("tf1_max_batch_resnet50")
        for row in table:
            batch = row["max_batch"]
            yield f"| study: {row['system']} | {batch:.0f} | {batch / table[0]['max_batch']:.2f} |"
        for found in saved.values():
            sign = "~ " if found["predicted"] else ""
            for name in ("plain", "recomputed"):
                yield f"| tfgc: {name} | {sign}{found[name]} | {found[name] / max(1, found['plain']):.2f} |"
            theirs = self.rows()[0].batch
            yield f"\nBudget of tfgc: {found['budget'] / 1e9:.3g} GB, of the study: {theirs / 1e9:.3g} GB."


def _largest(network, budget, steps, predict):
    import tfgc

    found = tfgc.max_batch(network, budget, optimizer="sgd", confirm=not predict, steps=steps)
    plain = found.plain.predicted_batch_size if predict else found.plain.batch_size
    best = found.predicted_batch_size if predict else found.batch_size
    return {"budget": budget, "plain": plain, "recomputed": best, "predicted": predict}


@dataclasses.dataclass(frozen=True)
class Peers:
    """Other ways to recompute beside tfgc, and whether they train as plain code does."""

    about: str
    takes: str
    packages: str = ""
    scale: float = 0.5

    def rows(self):
        # Where nothing is random and no state moves; statistics; Dropout.
        return [
            Row("sample_cnn", 8, image_size=128),
            Row("resnet50", 16, image_size=112),
            Row("transformer_encoder", 4),
        ]

    def measure(self, row, batch, steps, predict):
        import peers

        if predict:
            raise SystemExit("peers: there is nothing to predict, leave --predict out")
        found = {}
        for way in ("plain", "optimal", "recompute_grad", *peers.REMAT):
            for mode in ("graph", "eager"):
                found[f"{way}-{mode}"] = _tried(peers.measure, row.source, row.image_size, batch, way, mode, steps)
        if row.network == "sample_cnn":
            import torch_peer

            for way in ("plain", "checkpoint_sequential"):
                found[f"{way}-torch"] = _tried(torch_peer.measure, row.source, row.image_size, batch, way, steps)
        return {"batch": batch, "cases": found}

    def lines(self, saved):
        yield "| network, batch | case | peak | of plain | time of plain | first step |"
        yield "| --- | --- | ---: | ---: | ---: | --- |"
        for network, found in saved.items():
            for name, case in found["cases"].items():
                head, plain = (
                    f"| {network}, {found['batch']} | {name} |",
                    found["cases"][f"plain-{name.split('-')[-1]}"],
                )
                if case["status"] != "ok" or plain["status"] != "ok":
                    yield f"{head} | | | {case['status']} |"
                    continue
                told = ", ".join(f"wrong {what}" for what in case.get("wrong", ())) or "as plain" * ("wrong" in case)
                share, times = case["peak"] / plain["peak"], case["seconds"] / plain["seconds"]
                yield f"{head} {case['peak'] / 1e6:,.0f} MB | {share:.1%} | x {times:.2f} | {told} |"


def _tried(function, *arguments):
    """What a case finds in its process, or how it failed."""
    try:
        return runs.in_process(function, *arguments)
    except Exception as error:  # whatever fails is a row of the table
        return {"status": f"{type(error).__name__}: {error}".partition("\n")[0].replace("|", "/")[:200]}


TABLES = {
    "ogc": Plans(
        "18 networks next to Optimal Gradient Checkpoint search (Feng & Huang, CVPR 2021; PyTorch on a GPU). optimal: "
        "the least peak with one replay; nested: with replays split again; published: the least work at their share.",
        "predicted: 1 to 5 minutes and 4 GB a network; measured at 1/8 of the batches: 2 hours, 16 GB",
        _ogc,
        {"optimal": _OPTIMAL, "nested": _NESTED,
         "published": {"strategy": "budget", "nested": False, "share": "published"}},
        ("graph", "compiled"),
    ),
    "resnet-depth": Plans(
        "ResNets of 18 to 200 layers next to a TF1 study on a GPU: recomputation, swapping to the host, a hybrid.",
        "predicted: 1 to 5 minutes and 4 GB a network; measured at 1/8 of the batches: 15 minutes, 8 GB",
        _depths,
        {"optimal": _OPTIMAL, "published": {"strategy": "budget", "share": "published"}},
    ),
    "inception-v4": Plans(
        "Inception v4 next to the same study.",
        "predicted: 5 minutes, 4 GB; measured at 1/8 of the batch: 10 minutes, 8 GB",
        _inception,
        {"optimal": _OPTIMAL, "published": {"strategy": "budget", "share": "published"}},
    ),
    "tf2-eager": Plans(
        "Three convolutional networks next to a TF2 eager implementation of 2020 on CPUs, whose peaks were sampled by "
        "memory_profiler at line ends: what happens inside the backward pass does not show there.",
        "predicted: 1 minute, 4 GB; measured at half of the batches: 15 minutes, 16 GB",
        _eager,
        {"optimal": _OPTIMAL, "nested": _NESTED},
        ("graph", "compiled"),
        scale=0.5,
    ),
    "segments": Plans(
        "How the number of segments changes memory and time, where activations dominate (sample_cnn) and where weights "
        "do (VGG16 at 32 pixels). A forum report asked why segments saved nothing in PyTorch's checkpoint_sequential: "
        "154 MB with 0 to 2 of them (published/torch_segments_sweep.csv); its weights dominated.",
        "predicted: 1 minute, 4 GB; measured at a quarter of the batches: 5 minutes, 8 GB",
        _segments,
        {f"uniform({count})": {"strategy": "uniform", "segments": count} for count in (2, 3, 5, 8, 12)},
        ("graph", "compiled"),
        scale=0.25,
    ),
    "hybrid": Plans(
        "What host memory adds: for each network a goal that the study or OGC set, and plans "
        f"for a link of {_LINK['bandwidth'] / 1e9:.0f} GB a second in each direction and {_LINK['speed'] / 1e12:.0f} "
        "Tflop a second.",
        "predicted alone: 2 to 15 minutes and 6 GB a network",
        _hybrid,
        {"optimal": _OPTIMAL, "offload": {"strategy": "offload", **_LINK},
         "hybrid": {"strategy": "hybrid", "share": "published", **_LINK}},
        scale=1.0,
        can_run=False,
    ),
    "max-batch": LargestBatch(
        "The largest batch of ResNet50 in the memory of a TF1 study on a GPU: plain, recomputed, swapped, a hybrid.",
        "predicted: 3 minutes, 4 GB; measured at a tenth of the budget: 10 minutes, 4 GB",
    ),
    "peers": Peers(
        "tf.recompute_grad, keras.RematScope and PyTorch's checkpoint_sequential beside tfgc, and whether their first "
        "step does to weights (gradients), statistics and seeds (states) what plain code does.",
        "measured at half of the batches: 20 minutes, 8 GB",
        "torch for its two rows (pip install torch --index-url https://download.pytorch.org/whl/cpu, 1 GB)",
    ),
}  # fmt: skip
