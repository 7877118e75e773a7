"""Graphs without a model, by hand and at random, and all plans of a small graph."""

import functools
import itertools
import random

from hypothesis import strategies as st

from tfgc import Graph, Plan
from tfgc._core.buffers import Buffers
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
    """Chains, skips and branches, several inputs and outputs, integers, views, with costs or without.

    Only the number of nodes is drawn by hypothesis, and shrinks; the rest comes from a seed
    that it draws, since its own draws make small and repeated graphs.
    """
    rng = draw(st.randoms(use_true_random=True))
    batch = rng.choice([None, 1, 3])
    inputs = {f"x{i}": Spec((None, rng.randint(1, 4))) for i in range(rng.randint(1, 2))}
    specs = {Ref(name): spec for name, spec in inputs.items()}
    told = rng.choice([0, 0.5, 1, "timed"])
    nodes = []
    for i in range(draw(st.integers(least, most))):
        near = list(specs)[-4:] if rng.random() < 0.7 else list(specs)
        reads = tuple(rng.choices(near, k=rng.choice([1, 1, 1, 2, 3])))
        outputs = tuple(
            Spec((None, rng.randint(1, 9)), rng.choice(["float32"] * 5 + ["int32"]))
            for _ in range(rng.choice([1, 1, 1, 1, 2]))
        )
        cost = None
        if told == "timed" or rng.random() < told:
            kind = rng.choice(["plain", "plain", "in place", "view"])
            if kind != "plain" and reads[0].node not in inputs:
                outputs = (specs[reads[0]],)
            else:
                kind = "plain"
            cost = _cost(rng, f"n{i}", reads, outputs, kind, specs, batch or 1, told == "timed", obstacles)
        nodes.append(Node(f"n{i}", reads, outputs, cost=cost))
        specs.update((Ref(f"n{i}", k), spec) for k, spec in enumerate(outputs))
    returned = {list(specs)[-1], *rng.sample(list(specs), rng.choice([0, 0, 1, 2]))}
    return Graph(tuple(nodes), inputs, tuple(sorted(returned)), batch, whole_step=rng.random() < 0.5)


def _cost(rng, name, reads, outputs, kind, specs, batch, timed, obstacles):
    reads = tuple(dict.fromkeys(reads))

    def some(refs, share):
        return tuple(ref for ref in refs if rng.random() < share)

    made_inside = tuple(ref for ref in reads if ref.node.startswith("n") and specs[ref].dtype == "float32")
    differentiable = rng.random() < 0.95
    if kind == "view":
        wants = tuple(ref for ref in made_inside if ref == reads[0])
        times = {"seconds": 0.0, "backward_seconds": 0.0} if timed else {}
        return Cost(
            (),
            differentiable_inputs=wants,
            passthrough_inputs=wants,
            aliases=reads[:1],
            differentiable=differentiable,
            **times,
        )

    def few():
        return 4 * rng.randint(0, 6)

    made = batch * sum(spec.bytes(1) for spec in outputs)
    internal = tuple(4 + few() for _ in range(rng.choice([0, 0, 1, 2])))
    workspace = few()
    wants = some(made_inside, 0.9)
    # Microseconds, about; in steps of a power of two, so that sums are exact.
    times = {key: rng.randint(0, 20) * 2.0**-20 for key in ("seconds", "backward_seconds")} if timed else {}
    flops = rng.randint(1, 20)
    products = {}
    if internal and rng.random() < 0.25:
        saved = min(few(), sum(internal))
        products["selective_bytes"], products["selective_saved_bytes"] = saved + 4 + few(), saved
        products["selective_trace"] = (made, sum(internal) - saved, workspace)
        products["selective_flops"] = rng.randint(0, flops)
        times.update({"selective_seconds": times["seconds"] / 4} if timed else {})
    return Cost(
        saved_tensors=some(reads, 0.5) + some([Ref(name, i) for i in range(len(outputs))], 0.4),
        saved_internal_bytes=internal,
        forward_trace=(made, workspace),
        forward_saving_trace=(made, sum(internal), workspace + few()),
        backward_trace=(few() - 12, few()),
        differentiable_inputs=wants,
        passthrough_inputs=some(wants, 0.3),
        overwrites=reads[0] if kind == "in place" else None,
        gradient_bytes=few(),
        differentiable=differentiable,
        flops=flops,
        backward_flops=rng.randint(1, 20),
        obstacle="it draws raw random numbers" if obstacles and rng.random() < 0.15 else None,
        **products,
        **times,
    )


def flat(graph):
    """All plans without nesting, as pieces; two kept neighbours are one."""
    return _of(graph, _flat(len(graph)))


def nested(graph):
    """All plans, nested or not, as pieces; running all of a replay once more helps nobody."""
    return _of(graph, _nested(len(graph), True))


def _of(graph, plans):
    """The plans that do not cut at a joint, with and without stored products in each segment that has some."""
    joints, products = _joints(graph), Buffers.of(graph).selective_before

    def ways(piece):
        start, end, how = piece
        selective = how == "recompute" and products[start] < products[end]
        return [piece, (start, end, "selective")] if selective else [piece]

    possible = (pieces for pieces in plans if _possible(pieces, joints))
    return [list(each) for pieces in possible for each in itertools.product(*map(ways, pieces))]


def _joints(graph):
    """Where no strategy but the rules of thumb cuts: between a node and one that writes over its output."""
    return {i for i, takes in enumerate(Buffers.of(graph).in_place) if takes}


def _possible(pieces, joints):
    return all(i not in joints and (isinstance(how, str) or _possible(how, joints)) for i, _, how in pieces)


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
