"""One conformance suite for every strategy, and the exact ones against brute force."""

import itertools
import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from random_graphs import chain, flat, graphs, nested, outcomes, random_graph

from tfgc import Graph, InfeasibleBudgetError, OptionError, Plan, TfgcError, strategies
from tfgc._core.graph import Cost, Node, Ref, Spec
from tfgc._simulate import outlooks, simulator
from tfgc.strategies import _places


class Claims(NamedTuple):
    """What a strategy needs and promises; the suite holds it to that.

    Attributes:
        options: What it is given for a graph, besides a budget.
        budget: Whether it honours one.
        never_worse: Whether its peak is never above that of `keep_all`.
        nests: Whether its replays may be split again.
    """

    options: Callable = lambda graph: {}
    budget: bool = False
    never_worse: bool = False
    nests: bool = False


STRATEGIES = {
    "articulation": Claims(),
    "budget": Claims(budget=True, never_worse=True, nests=True),
    "hybrid": Claims(budget=True, never_worse=True),
    "ilp": Claims(budget=True, never_worse=True),
    "keep_all": Claims(never_worse=True),
    "manual": Claims(lambda graph: {"keep": [node.name for node in graph.nodes[:2]]}),
    "offload": Claims(never_worse=True),
    "optimal": Claims(never_worse=True),
    "speed": Claims(),
    "sqrt": Claims(),
    "uniform": Claims(),
}
BUDGETED = [name for name, claims in STRATEGIES.items() if claims.budget]
EACH = pytest.mark.parametrize("name", STRATEGIES)
EACH_BUDGETED = pytest.mark.parametrize("name", BUDGETED)


def examples(count):
    """So many graphs, the same ones in every run; not shrunk, which by brute force takes minutes."""
    return settings(
        derandomize=True,
        max_examples=count,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
        phases=[Phase.generate],
    )


def keep_all(graph):
    return strategies.apply("keep_all", graph)


def planned(name, graph, budget=None):
    """The plan of a strategy; one that honours a budget is given what `keep_all` needs, unless another is named."""
    claims = STRATEGIES[name]
    if claims.budget and budget is None:
        budget = keep_all(graph).outlook.peak_bytes
    return strategies.apply(name, graph, budget=budget, **claims.options(graph))


def recomputed(segments):
    return {node for s in segments if s.mode == "recompute" for node in s.nodes}


def test_every_strategy_is_in_the_suite():
    assert strategies.available() == sorted(STRATEGIES)


@EACH
def test_conformance(name):
    @examples(25)
    @given(graphs(most=10, obstacles=True))
    def check(graph):
        plan = planned(name, graph)
        plan.check(graph)
        assert [n for s in plan.segments for n in s.nodes] == [n.name for n in graph.nodes]
        assert plan == planned(name, graph)
        assert Plan.from_json(plan.to_json()) == plan
        assert name in plan.explain()
        assert plan.strategy == name
        assert plan.batch_size == graph.batch_size
        assert STRATEGIES[name].nests or all(s.inner is None for s in plan.segments)
        assert not recomputed(plan.segments) & {n.name for n in graph.nodes if n.cost and n.cost.obstacle}
        outlook = plan.outlook
        prediction = simulator.predict(graph, plan)
        assert outlook.peak_bytes == prediction.peak_bytes
        assert outlook.overhead == prediction.overhead
        assert outlook.plain_bytes == keep_all(graph).outlook.peak_bytes
        assert outlook.floor_bytes <= outlook.peak_bytes
        assert outlook.least_overhead <= outlook.overhead + 1e-12
        assert outlook.floor_node in graph.position
        if STRATEGIES[name].never_worse:
            assert outlook.peak_bytes <= outlook.plain_bytes

    check()


@pytest.mark.parametrize("name", [n for n in STRATEGIES if not STRATEGIES[n].never_worse])
def test_a_rule_of_thumb_can_be_worse_than_keeping_all(name):
    """Where every node puts out much and keeps little: a cut stores what TensorFlow would have freed."""
    big, small = Spec((None, 100)), Spec((None, 1))
    nodes = []
    for i in range(9):
        before = Ref(f"n{i - 1}") if i else Ref("x")
        wants, saved = ((before,) if i else ()), (Ref(f"n{i}", 1),) * (i % 2)
        cost = Cost(saved, wants, 404, 400 * len(wants), flops=100)
        nodes.append(Node(f"n{i}", (before,), (big, small), "node" if i % 2 else "Conv2D", cost=cost))
    graph = Graph(tuple(nodes), {"x": big}, (Ref("n8"),))
    assert planned(name, graph).outlook.cut_off < 0


@pytest.mark.gate
@EACH_BUDGETED
def test_a_budget_is_honoured_or_refused_with_the_least_that_works(name):
    @examples(25)
    @given(graphs(obstacles=True), st.lists(st.integers(0, 100), min_size=3, max_size=3))
    def check(graph, percents):
        plain = keep_all(graph).outlook
        with pytest.raises(InfeasibleBudgetError) as refused:
            planned(name, graph, plain.floor_bytes - 1)
        least = refused.value.least
        assert plain.floor_bytes <= least <= plain.peak_bytes
        assert refused.value.budget == plain.floor_bytes - 1
        assert refused.value.node in graph.position
        assert planned(name, graph, least).outlook.peak_bytes == least
        with pytest.raises(InfeasibleBudgetError):
            planned(name, graph, least - 1)
        budgets = sorted(least + (plain.peak_bytes - least) * percent // 100 for percent in percents)
        found = [planned(name, graph, budget).outlook for budget in budgets]
        assert all(outlook.peak_bytes <= budget for outlook, budget in zip(found, budgets))
        for tight, loose in itertools.pairwise(found):
            assert loose.overhead <= tight.overhead
            assert tight.peak_bytes <= loose.peak_bytes

    check()


@EACH
def test_one_node(name):
    plan = planned(name, chain([5]))
    assert [s.nodes for s in plan.segments] == [("n0",)]
    assert plan.outlook.overhead == 0


@EACH
def test_nodes_that_cannot_be_run_twice_are_kept(name):
    nodes = list(chain([10] * 9).nodes)
    cost = Cost((Ref("n4", 1),), nodes[4].inputs, 440, 40, obstacle="RandomUniform")
    nodes[4] = Node("n4", nodes[4].inputs, (*nodes[4].outputs, Spec((None, 100))), cost=cost)
    graph = Graph(tuple(nodes), {"x": Spec((None, 1))}, (Ref("n8"),))
    budget = strategies.apply("optimal", graph).outlook.peak_bytes if STRATEGIES[name].budget else None
    plan = planned(name, graph, budget)
    assert "n4" not in recomputed(plan.segments)
    if name in ("budget", "ilp", "optimal"):
        assert {"n0", "n1", "n5", "n6"} & recomputed(plan.segments)


@EACH_BUDGETED
@pytest.mark.parametrize("budget", [0, -5, 1])
def test_budgets_below_everything_are_refused(name, budget):
    with pytest.raises(InfeasibleBudgetError, match="the smallest budget that works is"):
        strategies.apply(name, random_graph(1), budget=budget)


@EACH_BUDGETED
def test_a_budget_must_be_given(name):
    with pytest.raises(OptionError, match="needs budget="):
        strategies.apply(name, random_graph(1))


@EACH
def test_sizes_that_are_open_are_asked_for(name):
    open_graph = Graph((Node("n0", (Ref("x"),), (Spec((None, None)),)),), {"x": Spec((None, 2))}, (Ref("n0"),))
    if name in ("keep_all", "manual", "uniform"):
        assert strategies.apply(name, open_graph, **STRATEGIES[name].options(open_graph)).outlook is None
    else:
        with pytest.raises(OptionError, match="input_shapes"):
            strategies.apply(name, open_graph, **({"budget": 10} if STRATEGIES[name].budget else {}))


def unequal_chain(n):
    return chain([(7 * i * i) % 23 + 1 for i in range(n)])


@pytest.mark.gate
def test_a_coarsened_plan_still_honours_every_budget():
    graph = unequal_chain(16)
    most = keep_all(graph).outlook.peak_bytes
    least = strategies.apply("optimal", graph).outlook.peak_bytes
    for budget in range(least, most, 20):
        plan = strategies.apply("budget", graph, budget=budget, positions=3)
        fine = strategies.apply("budget", graph, budget=budget, positions=16)
        assert plan.outlook.peak_bytes <= budget
        assert fine.outlook.overhead <= plan.outlook.overhead
        assert "coarsened" not in fine.options
        if "coarsened" in plan.options:
            assert plan.options["coarsened"] in (3, 12)  # of plans with nested replays, and of others
            assert f"coarsened={plan.options['coarsened']}" in plan.explain()
    assert "coarsened" in strategies.apply("budget", graph, budget=(least + most) // 2, positions=3).options


def test_a_graph_of_many_passes_is_cut_at_some_places(monkeypatch):
    graph = unequal_chain(40)
    simple = min(strategies.apply("sqrt", graph, segments=n).outlook.peak_bytes for n in range(2, 12))
    full = strategies.apply("optimal", graph)
    assert "coarsened" not in full.options
    monkeypatch.setattr(_places, "_MOST", 200)
    plan = strategies.apply("optimal", graph)
    assert 8 <= plan.options["coarsened"] < 40
    assert full.outlook.peak_bytes <= plan.outlook.peak_bytes <= simple
    assert f"coarsened={plan.options['coarsened']}" in plan.explain()


def test_nesting_goes_below_the_least_peak_of_one_replay():
    graph = unequal_chain(40)
    least = strategies.apply("optimal", graph).outlook.peak_bytes
    plan = strategies.apply("budget", graph, budget=int(0.8 * least))
    assert any(s.inner is not None for s in plan.segments)
    flat = strategies.apply("budget", graph, budget=int(1.1 * least), nested=False)
    assert not any(s.inner is not None for s in flat.segments)
    assert "nested=False" in flat.explain()
    with pytest.raises(InfeasibleBudgetError):
        strategies.apply("budget", graph, budget=int(0.8 * least), nested=False)


@pytest.mark.gate
def test_a_larger_budget_is_never_slower():
    graph = unequal_chain(45)
    least = strategies.apply("optimal", graph).outlook.peak_bytes
    budgets = sorted({int(least * factor) for factor in (0.8, 0.95, 1, 1.1, 1.29, 1.3, 1.31, 2)})
    plans = [strategies.apply("budget", graph, budget=budget) for budget in budgets]
    works = [plan.outlook.overhead for plan in plans]
    assert works == sorted(works, reverse=True)
    assert plans[0].is_nested


def test_ilp_without_scipy_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(TfgcError, match=r"pip install \"tfgc\[ilp\]\""):
        strategies.apply("ilp", chain([1, 2, 3]), budget=1000)


@pytest.mark.parametrize("time_limit", ["abc", -1, 0, True, float("nan")])
def test_ilp_without_a_time_says_what_one_is(time_limit):
    with pytest.raises(OptionError, match=rf"^time_limit={time_limit!r}: must be a number of seconds above 0$"):
        strategies.apply("ilp", chain([1, 2, 3]), budget=1000, time_limit=time_limit)


def test_ilp_out_of_time_gives_a_plan_that_fits():
    graph = unequal_chain(40)
    budget = int(1.2 * strategies.apply("optimal", graph).outlook.peak_bytes)
    plan = strategies.apply("ilp", graph, budget=budget, time_limit=1e-6)
    assert plan.outlook.peak_bytes <= budget
    assert plan.options["gap"] is None or plan.options["gap"] > 0


def optimal_has_the_least_peak_and_the_least_work_at_it(graph):
    peak, work = min(outcomes(graph, flat(graph)).items())
    found = simulator.predict(graph, strategies.apply("optimal", graph))
    assert (found.peak_bytes, found.work) == (peak, work)


def test_optimal_has_the_least_work_where_byte_counts_are_no_multiples_of_a_slot():
    """Estimated by slots, another plan of the least peak seems to have less."""
    sizes = [153045, 773761, 198365, 917636, 879868, 852733, 566805, 107152, 294505, 790772]
    optimal_has_the_least_peak_and_the_least_work_at_it(chain(sizes))


def some_budgets(works):
    """The least that works, what suffices for any plan, and one between."""
    least, most = min(works), max(works)
    return {least, (least + most) // 2, most}


def ilp_has_the_least_work_without_nesting(graph):
    works = outcomes(graph, flat(graph))
    for budget in some_budgets(works):
        plan = strategies.apply("ilp", graph, budget=budget)
        assert plan.options == {"gap": pytest.approx(0, abs=1e-9)}
        assert simulator.predict(graph, plan).work == min(work for peak, work in works.items() if peak <= budget)


def budget_has_the_whole_front_of_nested_plans(graph):
    assert front_of(graph) == least_work(outcomes(graph, nested(graph)))


def budget_has_the_whole_front_without_nesting(graph):
    assert front_of(graph, nested=False) == least_work(outcomes(graph, flat(graph)))


def front_of(graph, **options):
    """The plans of `budget` for each budget, from the least peak that it has to the plain step."""
    with pytest.raises(InfeasibleBudgetError) as refused:
        strategies.apply("budget", graph, budget=0, **options)
    front, budget = [], keep_all(graph).outlook.peak_bytes
    while budget >= refused.value.least:
        found = simulator.predict(graph, strategies.apply("budget", graph, budget=budget, **options))
        front.append((found.peak_bytes, found.work))
        budget = found.peak_bytes - 1
    return front[::-1]


def least_work(outcomes):
    """Of pairs (peak, work) those with less work than all of lower peaks."""
    least, front = float("inf"), []
    for peak, work in sorted(outcomes.items()):
        if work < least:
            front.append((peak, work))
            least = work
    return front


def budget_is_never_slower_than_without_nesting(graph):
    works = outcomes(graph, flat(graph))
    for budget in some_budgets(works):
        found = simulator.predict(graph, strategies.apply("budget", graph, budget=budget))
        assert found.work <= min(work for peak, work in works.items() if peak <= budget)


def no_plan_goes_below_the_floor_or_the_least_overhead(graph):
    floor = keep_all(graph).outlook.floor_bytes
    for pieces in nested(graph):
        outlook = outlooks.with_outlook(graph, Plan.from_pieces(graph, pieces, strategy="brute force")).outlook
        assert floor <= outlook.peak_bytes
        assert outlook.least_overhead <= outlook.overhead + 1e-12


# What is exact, the most nodes that brute force can do, and how many graphs are tried.
EXACT = [
    (optimal_has_the_least_peak_and_the_least_work_at_it, 8, 80),
    (ilp_has_the_least_work_without_nesting, 8, 60),
    (budget_has_the_whole_front_of_nested_plans, 6, 60),
    (budget_has_the_whole_front_without_nesting, 7, 60),
    (budget_is_never_slower_than_without_nesting, 8, 60),
    (no_plan_goes_below_the_floor_or_the_least_overhead, 5, 40),
]
BY_CLAIM = pytest.mark.parametrize(("claim", "most", "count"), EXACT, ids=[claim.__name__ for claim, _, _ in EXACT])


@BY_CLAIM
def test_against_brute_force(claim, most, count):
    """On graphs that are one node smaller, but for the smallest, and half of the examples."""
    examples(count // 2)(given(graphs(most=max(most - 1, 5), obstacles=True))(claim))()


@pytest.mark.slow
@pytest.mark.timeout(2400)
@BY_CLAIM
def test_against_brute_force_at_length(claim, most, count):
    examples(25 * count)(given(graphs(most=most, obstacles=True))(claim))()
