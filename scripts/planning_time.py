"""Measure how long tracing and planning take, and how planning time grows with the number of nodes.

    python scripts/planning_time.py              # all of these:
    python scripts/planning_time.py --networks   # the least peak of networks
    python scripts/planning_time.py --budgets    # what budgets of networks cost: shares of the plain step's activations
    python scripts/planning_time.py --host       # plans that store on the host, by `offload` and `hybrid`
    python scripts/planning_time.py --synthetic  # synthetic graphs of 500 to 5,000 nodes

Each case runs in its own process. Times are wall-clock, those of budgets and of the host are the processor's; memory is
the largest resident set of the process.
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
BUDGETS = (("resnet50", 8), ("densenet121", 8), ("efficientnetb0", 8), ("inceptionv3", 8))
HOST = (
    ("efficientnetb0", 8, "offload"),
    ("efficientnetb0", 8, "offload", "host_budget=1GB"),
    ("mobilenetv2", 8, "offload", "host_budget=30MB"),
    ("transformer_encoder", 8, "hybrid", "host_budget=30MB"),
    ("transformer_encoder", 8, "hybrid", "host_budget=30MB"),
)
SHARES = (0.25, 0.3, 0.35, 0.4, 0.5)
SIZES = (500, 1000, 2000, 5000)
LIMIT_SECONDS, LIMIT_BYTES = 60, 2e9


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in TABLES:
        parser.add_argument(f"--{name}", action="store_true", help=f"print the table of {name}")
    parser.add_argument("--case", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        table, *case = arguments.case
        print(TABLES[table][2](*case))
        return
    chosen = [name for name in TABLES if getattr(arguments, name)] or list(TABLES)
    for name in chosen:
        head, cases, _ = TABLES[name]
        print(f"\n{head}")
        for case in cases:
            print(child(name, *map(str, case)), flush=True)


def child(*case):
    command = [sys.executable, __file__, "--case", *case]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def resident():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def network(name, batch, allowed):
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
        f"| {end - start:.1f} s, {allowed} s | {resident() / 1e9:.2f} GB |"
    )


def budgets(name, batch):
    """Plan a model for all budgets; return a row of the table."""
    from tfgc import strategies, zoo
    from tfgc._costs import node_costs
    from tfgc._simulate import simulator
    from tfgc._tracing import keras_graph

    graph = node_costs.annotate(keras_graph.Program(zoo.build(name), int(batch)))
    start = time.process_time()
    front = strategies.frontier(graph)
    without = time.process_time() - start
    plain = front.peaks[-1]
    with_nested = time.process_time() - start
    cells = []
    for share in SHARES:
        fits = front.peaks[0] <= share * plain
        cells.append(f"{simulator.predict(graph, front.within(int(share * plain))).overhead:.1%}" if fits else "-")
    least = f"{front.peaks[0] / plain:.1%}"
    return f"| {name}, {batch} | {without:.1f} s | {with_nested:.1f} s | {least} | {' | '.join(cells)} |"


def host(name, batch, strategy, *words):
    """Plan a model for half of its activations; return a row of the table."""
    from tfgc import strategies, zoo
    from tfgc._costs import node_costs
    from tfgc._tracing import keras_graph

    graph = node_costs.annotate(keras_graph.Program(zoo.build(name), int(batch)))
    options = dict(word.split("=") for word in words)
    if strategy == "hybrid":
        options["budget"] = strategies.apply("keep_all", graph).outlook.peak_bytes // 2
    start = time.process_time()
    plan = strategies.apply(strategy, graph, **options)
    seconds = time.process_time() - start
    on_host = sum(segment.host_bytes or 0 for segment in plan.segments)
    outlook = plan.outlook
    return (
        f"| {name}, {batch} | {', '.join((strategy, *words))} | {seconds:.1f} s | {1 - outlook.cut_off:.1%} "
        f"| {outlook.overhead:.1%} | {on_host / 1e6:.1f} MB |"
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


# Of each table its head, its cases, and what makes a row of one.
TABLES = {
    "networks": (
        "| network, batch | nodes | trace and costs | optimal | together, allowed | resident |\n"
        "| --- | ---: | ---: | ---: | ---: | ---: |",
        NETWORKS,
        network,
    ),
    "budgets": (
        "| network, batch | all budgets, not nested | and nested | least peak | "
        + " | ".join(f"work at {share:.0%}" for share in SHARES)
        + " |\n| --- | ---: | ---: | ---: |"
        + " ---: |" * len(SHARES),
        BUDGETS,
        budgets,
    ),
    "host": (
        "| network, batch | strategy | time | peak | work | on the host |\n| --- | --- | ---: | ---: | ---: | ---: |",
        HOST,
        host,
    ),
    "synthetic": (
        "| synthetic nodes | strategy | time | cut-off, overhead | resident | within limits |\n"
        "| ---: | --- | ---: | ---: | ---: | --- |",
        [(size, strategy) for size in SIZES for strategy in ("optimal", "budget")],
        synthetic,
    ),
}


if __name__ == "__main__":
    main()
