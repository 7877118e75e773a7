"""Planning of models with many outputs, heads or branches, where what segments may store doubles with each of them."""

import resource
import signal

import keras
import pytest
from random_graphs import chain

import tfgc
from tfgc import Plan, strategies
from tfgc._core.graph import Graph, Node, Ref, Spec
from tfgc.strategies import _places

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
def test_a_search_that_is_too_long_looks_at_fewer_places_and_says_so(kind, monkeypatch):
    monkeypatch.setattr(_places, "_MOST", 3000)
    graph = graph_of(kind, 30)
    plain, sqrt = (strategies.apply(name, graph).outlook.peak_bytes for name in ("keep_all", "sqrt"))
    best = strategies.apply("optimal", graph)
    assert best == strategies.apply("optimal", graph_of(kind, 30))
    assert best.outlook.peak_bytes <= min(plain, sqrt)
    for budget in (best.outlook.peak_bytes, plain - 1):
        plan = strategies.apply("budget", graph, budget=budget)
        assert plan.outlook.peak_bytes <= budget
        assert plan.options["coarsened"] <= 31
        assert f"coarsened={plan.options['coarsened']}" in plan.explain()
        assert Plan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize("name", ["hybrid", "ilp", "offload"])
def test_slow_searches_look_at_fewer_places(name, monkeypatch):
    monkeypatch.setattr(_places, "_MOST", 1000)
    graph = graph_of("branches", 20)
    plain = strategies.apply("keep_all", graph).outlook.peak_bytes
    budget = {} if name == "offload" else {"budget": int(0.9 * plain)}
    plan = strategies.apply(name, graph, **budget)
    assert plan.outlook.peak_bytes <= 0.9 * plain
    assert plan.options["coarsened"] <= 11


def test_passes_of_nested_plans_are_bounded(monkeypatch):
    graph = chain([2, 3, 5, 7] * 5)
    least = strategies.apply("optimal", graph).outlook.peak_bytes
    monkeypatch.setattr(_places, "_MOST_NESTED", 300)
    plan = strategies.apply("budget", graph, budget=int(0.9 * least))
    assert plan.is_nested
    assert plan.options["coarsened"] < 20


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
