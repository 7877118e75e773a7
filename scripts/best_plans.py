"""Least peaks, floors and overheads by prediction, beside Feng & Huang, CVPR 2021.

Each network of `tfgc/bench/reference/ogc_cvpr2021.csv` that keras.applications has, at its batch and image
size. Peaks leave weights out, theirs and ours as shares of the plain step's. `optimal` replays once; `nested` is the
least peak of the front of `budget`; `at published` is the plan that `budget` gives at the published cut-off, its
overhead in seconds measured node by node on this machine (`measure=True`), and in flops.
No step is run. Timing all networks takes about half an hour on 2 cores; nothing else may run meanwhile.

    python scripts/best_plans.py                 # all rows, from kept results where there are some
    python scripts/best_plans.py resnet50        # plan again, and time what is not in the cache
    python scripts/best_plans.py --table         # only print what is there
"""

import argparse
import csv
import json
import pathlib
import sys

from tfgc import _costs, _judge, _simulate, _timing, _trace, strategies, zoo
from tfgc._buffers import Buffers
from tfgc.strategies import budget

HERE = pathlib.Path(__file__).parent
REFERENCE = HERE.parent / "tfgc" / "bench" / "reference" / "ogc_cvpr2021.csv"
RESULTS = HERE / "results" / "best_plans.json"
NETWORKS = {
    "vgg16": None,
    "vgg19": None,
    "resnet50": None,
    "resnet101": None,
    "resnet152": None,
    "densenet121": None,
    "densenet169": None,
    "densenet201": None,
    "inception_v3": 300,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", metavar="network", help="which to plan again; default: those not there")
    parser.add_argument("--table", action="store_true", help="plan nothing, print the results that are there")
    parser.add_argument("--flops", action="store_true", help="time nothing: overheads in flops alone")
    arguments = parser.parse_args()
    unknown = set(arguments.networks) - set(NETWORKS)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are: {', '.join(NETWORKS)}")
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    with open(REFERENCE, newline="") as file:
        published = {row["network"]: row for row in csv.DictReader(file) if row["network"] in NETWORKS}
    for name, row in published.items():
        wanted = name in arguments.networks if arguments.networks else name not in results
        if wanted and not arguments.table:
            print(f"{name} ...", file=sys.stderr, flush=True)
            results[name] = plan(name, int(row["batch"]), int(row["cut_off_pct"]) / 100, not arguments.flops)
            RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    print_table(results, published)


def plan(name, batch, cut_off, measure):
    """All figures of one network; overheads are pairs (unit, part of the plain step's work)."""
    program = _trace.Program(zoo.build(name, NETWORKS[name]), batch)
    graph = _costs.annotate(program)
    graphs = {"flop": graph, **({"s": _timing.timed(program, graph)} if measure else {})}
    floor_bytes, floor_node = _judge.floor(graph, Buffers(graph))
    optimal = strategies.apply("optimal", graph)
    plain_bytes = optimal.outlook.plain_bytes
    found = {
        "batch": batch,
        "plain_bytes": plain_bytes,
        "floor": 1 - floor_bytes / plain_bytes,
        "floor_node": floor_node,
        "optimal": optimal.outlook.cut_off,
        "optimal_overhead": {unit: _simulate.predict(g, optimal).overhead for unit, g in graphs.items()},
        "nested_overhead": {},
        "published_overhead": {},
    }
    for unit, timed in graphs.items():
        front = budget.front(timed)
        fitting = [chosen for peak, chosen in front if peak <= (1 - cut_off) * plain_bytes]
        found["nested"] = max(found.get("nested", 0), 1 - front[0][0] / plain_bytes)
        found["nested_overhead"][unit] = _simulate.predict(timed, front[0][1]).overhead
        if fitting:
            found["published_overhead"][unit] = _simulate.predict(timed, fitting[-1]).overhead
    return found


def told(overheads):
    """Overheads in seconds and in flops."""
    return ", ".join(f"{overheads[unit]:.1%} {unit}" for unit in ("s", "flop") if unit in overheads) or "not reached"


def print_table(results, published):
    """One row a network, with what is asked of it."""
    print(
        "| network, batch | published: cut-off, overhead | optimal: cut-off, overhead | nested: cut-off, overhead "
        "| floor, set by | overhead at the published cut-off | one replay | nested | at most 0.8 of published |\n"
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    )
    for name, r in ((name, results[name]) for name in NETWORKS if name in results):
        row = published[name]
        cut_off, overhead = int(row["cut_off_pct"]) / 100, int(row["overhead_pct"]) / 100
        goal = min(cut_off + 0.05, (cut_off + r["floor"]) / 2)
        here = r["published_overhead"]
        print(
            f"| {name}, {r['batch']} | {cut_off:.0%}, {overhead:.0%} "
            f"| {r['optimal']:.1%}, {told(r['optimal_overhead'])} | {r['nested']:.1%}, {told(r['nested_overhead'])} "
            f"| {r['floor']:.1%}, {r['floor_node']} | {told(here)} "
            f"| {verdict(r['optimal'] >= cut_off, r['optimal'] >= r['floor'] - 5e-4)} "
            f"| {verdict(r['nested'] >= goal, r['nested'] >= r['floor'] - 5e-4)} "
            f"| {verdict(here['s'] <= 0.8 * overhead, False) if 's' in here else 'not timed'} |"
        )


def verdict(met, at_floor):
    return "yes" if met else "at its floor" if at_floor else "missed"


if __name__ == "__main__":
    main()
