"""Measure how long tracing and planning take, and how planning time grows with the number of nodes.

    python scripts/planning_time.py              # networks, then synthetic graphs of 500 to 5,000 nodes
    python scripts/planning_time.py --networks   # networks only
    python scripts/planning_time.py --synthetic  # synthetic graphs only

Each case runs in its own process. Times are wall-clock; memory is the largest resident set of the process.
"""

import argparse
import random
import resource
import subprocess
import sys
import time

NETWORKS = (
    ("resnet50", 64, 3),
    ("nasnetmobile", 32, 10),
    ("densenet201", 16, 10),
    ("resnet152", 16, 20),
    ("nasnetlarge", 8, 20),
)
SIZES = (500, 1000, 2000, 5000)
LIMIT_SECONDS, LIMIT_BYTES = 60, 2e9


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", action="store_true", help="measure networks only")
    parser.add_argument("--synthetic", action="store_true", help="measure synthetic graphs only")
    parser.add_argument("--case", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        print(synthetic(*arguments.case) if arguments.case[1] in ("optimal", "budget") else network(*arguments.case))
        return
    both = arguments.networks == arguments.synthetic
    if both or arguments.networks:
        print("| network, batch | nodes | trace and costs | optimal | together, allowed | resident |")
        print("| --- | ---: | ---: | ---: | ---: | ---: |")
        for name, batch, allowed in NETWORKS:
            print(child(name, str(batch)).replace("ALLOWED", f"{allowed} s"), flush=True)
    if both or arguments.synthetic:
        print("\n| synthetic nodes | strategy | time | cut-off, overhead | resident | within limits |")
        print("| ---: | --- | ---: | ---: | ---: | --- |")
        for size in SIZES:
            for strategy in ("optimal", "budget"):
                print(child(str(size), strategy), flush=True)


def child(*case):
    command = [sys.executable, __file__, "--case", *case]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def resident():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def network(name, batch):
    """Trace a model, read its costs and plan it; return a row of the table."""
    from tfgc import strategies, zoo
    from tfgc._costs import node_costs
    from tfgc._tracing import keras_graph

    model = zoo.build(name)
    start = time.perf_counter()
    graph = node_costs.annotate(keras_graph.Program(model, int(batch)))
    traced = time.perf_counter()
    strategies.apply("optimal", graph)
    end = time.perf_counter()
    return (
        f"| {name}, {batch} | {len(graph)} | {traced - start:.1f} s | {end - traced:.1f} s "
        f"| {end - start:.1f} s, ALLOWED | {resident() / 1e9:.2f} GB |"
    )


def synthetic(size, strategy):
    """Plan a chain with short and long skips and unequal costs; return a row of the table."""
    from tfgc import strategies

    graph = skipping_chain(int(size))
    plain = strategies.apply("keep_all", graph).outlook.peak_bytes
    options = {"budget": plain // 5} if strategy == "budget" else {}
    start = time.perf_counter()
    plan = strategies.apply(strategy, graph, **options)
    seconds = time.perf_counter() - start
    within = seconds <= LIMIT_SECONDS and resident() <= LIMIT_BYTES
    return (
        f"| {len(graph):,} | {strategy} {plan.options or ''} | {seconds:.1f} s | {plan.outlook.cut_off:.1%}, "
        f"{plan.outlook.overhead:.1%} | {resident() / 1e9:.2f} GB | {'yes' if within else 'no'} |"
    )


def skipping_chain(size, seed=0):
    """Make a chain in which every 7th node also reads the node 7 before it, and every 50th the node 50 before it."""
    from tfgc._core.graph import Graph, Node, Ref, Spec

    chance = random.Random(seed)
    nodes = []
    for i in range(size):
        reads = [Ref(f"n{i - 1}") if i else Ref("x")]
        reads += [Ref(f"n{i - back}") for back in (7, 50) if i >= back and i % back == back - 1]
        nodes.append(Node(f"n{i}", tuple(reads), (Spec((None, chance.choice([64, 128, 256, 512]))),)))
    return Graph(tuple(nodes), {"x": Spec((None, 256))}, (Ref(f"n{size - 1}"),), batch_size=32)


if __name__ == "__main__":
    main()
