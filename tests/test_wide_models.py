"""Planning of models with many outputs, heads or branches, where what segments may store doubles with each of them."""

import resource
import signal

import keras
import pytest
from random_graphs import chain

import tfgc
from tfgc import Plan, strategies
from tfgc._core.graph import Graph, Node, Ref, Spec
from tfgc.strategies import _flat_plans, _nested_plans

L = keras.layers
KINDS = ["outputs", "heads", "branches"]


@pytest.fixture(autouse=True)
def bounded():
    """Trying all ends after minutes of the processor, or with too little memory, in place of years later."""

    def end(*_):
        raise AssertionError("planning takes over a minute of the processor")

    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, 60)
    most = _most_kilobytes()
    yield
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    signal.signal(signal.SIGVTALRM, before)
    assert _most_kilobytes() - most < 1_000_000


def _most_kilobytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def graph_of(kind, count):
    """Layers of equal size without costs."""
    nodes = [Node("trunk", (Ref("x"),), (Spec((None, 4)),))]

    def after(*names):
        nodes.append(Node(f"n{len(nodes)}", tuple(map(Ref, names)), (Spec((None, 4)),)))
        return nodes[-1].name

    last, outputs = "trunk", []
    for _ in range(count):
        last = after("trunk" if kind == "branches" else last)
        outputs.append(last if kind == "outputs" else after(last))
    if kind == "branches":
        outputs = [after(after(*outputs))]
    return Graph(tuple(nodes), {"x": Spec((None, 1))}, tuple(map(Ref, outputs)), 8)


@pytest.mark.parametrize("kind", KINDS)
def test_a_search_looks_at_some_plans_and_says_so(kind, monkeypatch):
    monkeypatch.setattr(_flat_plans, "_GROWN", 3000, raising=False)
    monkeypatch.setattr(_flat_plans, "_STATES", 6, raising=False)
    graph = graph_of(kind, 30)
    plain, sqrt = (strategies.apply(name, graph).outlook.peak_bytes for name in ("keep_all", "sqrt"))
    best, front = strategies.apply("optimal", graph), strategies.frontier(graph)
    assert best == strategies.apply("optimal", graph_of(kind, 30))
    assert front.peaks[0] <= best.outlook.peak_bytes <= min(plain, sqrt)
    assert front.peaks[-1] == plain
    for plan in (best, *front.plans[:-1]):
        count, known = plan.options["searched"]
        assert count < 1500 < known
        assert f"went on from {count:,} of {known:,} partial plans" in " ".join(plan.explain().split())
        assert Plan.from_json(plan.to_json()) == plan
    assert all(front.within(peak) in front.plans for peak in front.peaks)


@pytest.mark.parametrize("name", ["hybrid", "ilp", "offload"])
def test_slow_searches_look_at_less(name, monkeypatch):
    monkeypatch.setattr(_flat_plans, "_GROWN", 300, raising=False)
    monkeypatch.setattr(_flat_plans, "_STATES", 2, raising=False)
    graph = graph_of("branches", 20)
    plain = strategies.apply("keep_all", graph).outlook.peak_bytes
    budget = {} if name == "offload" else {"budget": int(0.9 * plain)}
    plan = strategies.apply(name, graph, **budget)
    assert plan.outlook.peak_bytes <= 0.9 * plain
    assert plan.options["searched"][0] < 200
    assert "a better plan may exist" in str(plan)


def test_passes_of_nested_plans_are_bounded(monkeypatch):
    graph = chain([2, 3, 5, 7] * 5)
    most = max(strategies.frontier(graph).peaks)
    monkeypatch.setattr(_nested_plans, "_MOST_PASSES", 300, raising=False)
    front = strategies.frontier(graph)
    nested = [plan for plan in front.plans if plan.is_nested]
    assert nested
    assert front.peaks[-1] == most
    assert all(plan.options["coarsened"] < 20 for plan in nested)


@pytest.mark.gate
@pytest.mark.parametrize(
    ("kind", "budget"),
    [
        pytest.param("outputs", "100%", marks=pytest.mark.slow),
        ("heads", "80%"),
        pytest.param("branches", "80%", marks=pytest.mark.slow),
    ],
)
def test_sixty_of_a_kind_are_planned_within_a_minute(kind, budget):
    x = inputs = keras.Input((8,))
    outputs = []
    for _ in range(60):
        made = L.Dense(8, "relu")(inputs if kind == "branches" else x)
        if kind == "outputs":
            x = made
        outputs.append(made if kind == "outputs" else L.Dense(8, "relu")(made))
    model = keras.Model(inputs, L.Dense(1)(L.Concatenate()(outputs)) if kind == "branches" else outputs)
    plan = tfgc.plan(model, 4096, budget=budget)
    assert plan.outlook.peak_bytes <= plan.outlook.plain_bytes
