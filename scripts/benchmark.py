"""Compare memory and time of recomputed training steps with plain ones, with targets.

Measures, for each network, the plain baselines and every strategy at several numbers of segments, in eager calls and in
tf.function: one process per case, all in one run. Results are saved in scripts/results; a network that has a file there
is not measured again. Prints Markdown: the least peaks, every case, and the targets. Run nothing else at the same time.

    python scripts/benchmark.py                  # everything, about half an hour on 2 cores
    python scripts/benchmark.py resnet50         # one network
    python scripts/benchmark.py --table          # print the saved results
"""

from typing import NamedTuple

import saved_cases

import tfgc
from tfgc import _units
from tfgc._records import measurement, results_json
from tfgc._report import command_tables, markdown


class Network(NamedTuple):
    name: str
    batch_size: int
    strategies: tuple
    steps: int = 5
    memory_limit: int | None = None

    @property
    def file(self):
        word = "".join(c if c.isalnum() else "_" for c in self.name).strip("_")
        return saved_cases.RESULTS / f"{word}_b{self.batch_size}.json"


class Target(NamedTuple):
    """A peak of at most `share` of the baseline's, at no more than `slower` times its time."""

    network: str
    baseline: str
    share: float
    slower: float


NETWORKS = (
    Network("resnet50", 16, ("sqrt:6", "sqrt:8", "sqrt:12")),
    Network("densenet121", 8, ("sqrt:6", "sqrt:8", "sqrt:12")),
    Network("sample_cnn", 16, ("sqrt:4", "sqrt:6", "uniform:6"), steps=3),
    Network("big_cnn(3, 3)", 16, ("sqrt:6", "sqrt:8", "sqrt:12"), steps=3),
    # Their plain steps need about 16 and 35 GB.
    Network("big_cnn(3, 9)", 16, ("sqrt",), steps=1, memory_limit=22_000_000_000),
    Network("big_cnn(3, 20)", 16, ("sqrt",), steps=1, memory_limit=22_000_000_000),
)
TARGETS = (
    Target("sample_cnn", "eager", 0.58, 1.15),
    Target("big_cnn(3, 3)", "eager", 0.35, 1.20),
    Target("resnet50", "eager", 0.30, 1.00),
    Target("resnet50", "graph", 0.55, 1.25),
    Target("densenet121", "eager", 0.15, 1.00),
)


def main():
    known = [n.name for n in NETWORKS]
    arguments = saved_cases.arguments(__doc__, known, {})
    for network in NETWORKS:
        if not arguments.table and network.name in (arguments.networks or known) and not network.file.exists():
            measure(network)
    records = {n.name: results_json.read(n.file).studies[0].records for n in NETWORKS if n.file.exists()}
    print(
        "| network, batch | plain-eager | plain-graph | tfgc, compiled | tfgc, graph |\n| --- | --- | --- | --- | --- |"
    )
    for name in records:
        print(summary(name, records[name]))
    for name in records:
        print("\n" + markdown.table(command_tables.comparison(records[name])).rstrip())
    print("\n### Targets\n")
    print(
        "| network | baseline | target | mode | best case | share of peak | time | met |\n"
        "| --- | --- | --- | --- | --- | ---: | ---: | --- |"
    )
    for target in TARGETS:
        for mode in ("compiled", "graph"):
            if target.network in records:
                print(row(target, mode, records[target.network]))


def recomputed(records, mode):
    """The cases of tfgc in one mode that finished."""
    return [r for r in records if r.status == "ok" and r.case != "plain" and r.mode == mode]


def summary(network, records):
    """One row: both plain steps, and tfgc's least peak in each mode."""
    plain = [next(r for r in records if r.name == f"plain-{mode}") for mode in ("eager", "graph")]
    best = [min(recomputed(records, mode), key=lambda r: r.peak_bytes) for mode in ("compiled", "graph")]

    def cell(record):
        if record.status != "ok":
            return record.status
        figures = f"{_units.format_bytes(record.peak_bytes)}, {_units.format_seconds(record.step_seconds)}"
        return figures if record.case == "plain" else f"{figures}, {record.case}"

    return f"| {network}, {records[0].batch_size} | {' | '.join(cell(r) for r in (*plain, *best))} |"


def measure(network):
    """Measure one network and write its file."""

    found = tfgc.compare(
        network.name,
        network.batch_size,
        network.strategies,
        steps=network.steps,
        memory_limit=network.memory_limit,
    )
    study = measurement.Study(network.name, network.batch_size, tuple(found))
    command = f"python scripts/benchmark.py {network.name!r}"
    network.file.write_text(results_json.to_json(measurement.Results((study,), command)))


def row(target, mode, records):
    """The case in this mode that meets the target with the least memory, or comes closest to it."""
    plain = next(r for r in records if r.name == f"plain-{target.baseline}")

    def miss(record):
        share, slower = record.peak_bytes / plain.peak_bytes, record.step_seconds / plain.step_seconds
        excess = max(0, share / target.share - 1) + max(0, slower / target.slower - 1)
        return (excess, share, slower, record.name)

    excess, share, slower, name = min(miss(r) for r in recomputed(records, mode))
    return (
        f"| {target.network} | plain-{target.baseline} | {target.share:.0%} at x {target.slower:.2f} | {mode} "
        f"| {name} | "
        f"{share:.1%} | x {slower:.2f} | {'missed' if excess else 'yes'} |"
    )


if __name__ == "__main__":
    main()
