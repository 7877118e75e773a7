"""Graphs without a model, by hand and at random, and all plans of a small graph."""

import functools
import itertools
import random

from hypothesis import strategies as st

from tfgc import Graph, Plan
from tfgc._core.graph import Cost, Node, Ref, Spec
from tfgc._simulate import simulator


def chain(sizes, batch_size=None):
    """Nodes one after another, of so many floats each, without costs."""
    nodes, last = [], Ref("x")
    for i, size in enumerate(sizes):
        nodes.append(Node(f"n{i}", (last,), (Spec((None, size)),)))
        last = Ref(f"n{i}")
    return Graph(tuple(nodes), {"x": Spec((None, 1))}, (last,), batch_size)


def random_graph(seed, n=12):
    """A graph without costs: nodes that read up to three earlier ones."""
    rng = random.Random(seed)
    nodes, made = [], [Ref("x")]
    for i in range(n):
        inputs = tuple(rng.sample(made, min(len(made), rng.randint(1, 3))))
        outputs = tuple(Spec((None, rng.randint(1, 50))) for _ in range(rng.randint(1, 2)))
        nodes.append(Node(f"n{i}", inputs, outputs))
        made += [Ref(f"n{i}", k) for k in range(len(outputs))]
    return Graph(tuple(nodes), {"x": Spec((None, 3))}, (made[-1], made[len(made) // 2]))


@st.composite
def graphs(draw, least=2, most=8, obstacles=False):
    """Chains, skips and branches, several inputs and outputs, integers, with costs or without.

    Only the number of nodes is drawn by hypothesis, and shrinks; the rest comes from a seed
    that it draws, since its own draws make small and repeated graphs.
    """
    rng = draw(st.randoms(use_true_random=True))
    batch = rng.choice([None, 1, 3])
    inputs = {f"x{i}": Spec((None, rng.randint(1, 4))) for i in range(rng.randint(1, 2))}
    specs = {Ref(name): spec for name, spec in inputs.items()}
    told = rng.choice([0, 0.5, 1])
    nodes = []
    for i in range(draw(st.integers(least, most))):
        near = list(specs)[-4:] if rng.random() < 0.7 else list(specs)
        reads = tuple(rng.choices(near, k=rng.choice([1, 1, 1, 2, 3])))
        outputs = tuple(
            Spec((None, rng.randint(1, 9)), rng.choice(["float32"] * 5 + ["int32"]))
            for _ in range(rng.choice([1, 1, 1, 1, 2]))
        )
        cost = _cost(rng, f"n{i}", reads, outputs, specs, batch or 1, obstacles) if rng.random() < told else None
        nodes.append(Node(f"n{i}", reads, outputs, cost=cost))
        specs.update((Ref(f"n{i}", k), spec) for k, spec in enumerate(outputs))
    returned = {list(specs)[-1], *rng.sample(list(specs), rng.choice([0, 0, 1, 2]))}
    return Graph(tuple(nodes), inputs, tuple(sorted(returned)), batch)


def _cost(rng, name, reads, outputs, specs, batch, obstacles):
    reads = tuple(dict.fromkeys(reads))

    def some(refs, share):
        return tuple(ref for ref in refs if rng.random() < share)

    def few():
        return 4 * rng.randint(0, 6)

    inside = tuple(ref for ref in reads if ref.node.startswith("n") and specs[ref].dtype == "float32")
    return Cost(
        saved_tensors=some(reads, 0.5) + some([Ref(name, i) for i in range(len(outputs))], 0.4),
        differentiable_inputs=some(inside, 0.9),
        forward_bytes=batch * sum(spec.bytes(1) for spec in outputs) + few(),
        backward_bytes=few() + few(),
        flops=rng.randint(1, 20),
        backward_flops=rng.randint(1, 20),
        obstacle="it draws raw random numbers" if obstacles and rng.random() < 0.15 else None,
    )


def flat(graph):
    """All plans without nesting, as pieces; two kept neighbours are one."""
    return _flat(len(graph))


def nested(graph):
    """All plans, nested or not, as pieces; running all of a replay once more helps nobody."""
    return _nested(len(graph), True)


@functools.cache
def _flat(n):
    found = []
    for count in range(n):
        for cuts in itertools.combinations(range(1, n), count):
            ends = [0, *cuts, n]
            for modes in itertools.product(("keep", "recompute"), repeat=count + 1):
                if ("keep", "keep") not in itertools.pairwise(modes):
                    found.append(list(zip(ends, ends[1:], modes)))
    return found


@functools.cache
def _nested(n, first):
    found = []

    def extend(start, pieces):
        if start == n:
            found.append(pieces)
            return
        for end in range(start + 1, n + 1):
            if not pieces or pieces[-1][2] != "keep":
                extend(end, [*pieces, (start, end, "keep")])
            if end < n or first:
                for inner in _nested(end - start, False):
                    if len(inner) == 1:
                        extend(end, [*pieces, (start, end, "recompute")])
                    else:
                        extend(end, [*pieces, (start, end, _moved(inner, start))])

    extend(0, [])
    return found


def _moved(pieces, by):
    return [(i + by, j + by, how if isinstance(how, str) else _moved(how, by)) for i, j, how in pieces]


def outcomes(graph, plans):
    """For each peak the least work of any of `plans`, given as pieces."""
    least = {}
    for pieces in plans:
        found = simulator.predict(graph, Plan.from_pieces(graph, pieces, strategy="brute force"))
        least[found.peak_bytes] = min(found.work, least.get(found.peak_bytes, float("inf")))
    return least
