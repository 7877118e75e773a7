"""A budget means the same to every strategy: the whole step as TensorFlow's allocator serves it."""

import contextlib
import dataclasses
import functools
import itertools

import keras
import pytest

import tfgc
from tfgc import Graph, InfeasibleBudgetError, strategies
from tfgc._core.graph import Cost, Node, Ref, Spec
from tfgc._core.plan import Plan
from tfgc._planning import planner
from tfgc._planning.budgets import StepBudget
from tfgc._planning.node_plans import NodePlans
from tfgc._simulate import allocation, simulator
from tfgc._simulate.bfc_allocator import Allocator
from tfgc.strategies._frontier import Frontier

L = keras.layers
MB = 10**6
# Such that chunks are larger than buffers, by other amounts for other plans
SIZES = [3.0, 2.9, 5.3, 1.1, 4.7, 2.3, 3.7]
FIXED = 7 * MB


def chain(weights=MB // 2):
    """Nodes that keep what they read, with weights of so many bytes each."""
    nodes, last = [], Ref("x")
    for i, size in enumerate(SIZES):
        cost = Cost((last,), differentiable_inputs=(last,), flops=100 + i, backward_flops=200, gradient_bytes=weights)
        nodes.append(Node(f"n{i}", (last,), (Spec((int(size * MB),), "float8_e5m2"),), cost=cost))
        last = Ref(f"n{i}")
    return Graph(tuple(nodes), {"x": Spec((MB,), "float8_e5m2")}, (last,), 1, whole_step=True)


def own(graph, *, budget):
    """A user's strategy: more segments until its buffers fit, as the simulator counts them."""
    peaks = []
    for count in range(1, 6):
        plan = strategies.get("sqrt")(graph, segments=count)
        peaks.append((simulator.predict(graph, plan).peak_bytes, plan.segments[0].nodes[0]))
        if peaks[-1][0] <= budget:
            return plan
    raise InfeasibleBudgetError(budget, *min(peaks))


def careless(graph, *, budget):
    """A user's strategy that leaves its budget aside."""
    return strategies.get("sqrt")(graph, segments=3)


@functools.cache
def solved(budget):
    return strategies.get("ilp")(chain(), budget=budget)


def ilp(graph, *, budget):
    """`ilp`, which takes a second for each answer, asked once at each budget."""
    return solved(budget)


BUDGETED = ["budget", ilp, own, careless]


@functools.cache
def least(strategy):
    with pytest.raises(InfeasibleBudgetError) as error:
        planner.choose(NodePlans(chain()), strategy, StepBudget(MB, FIXED), {})
    assert error.value.budget == MB
    assert error.value.node in {node.name for node in chain().nodes}
    return error.value.least


def chosen(strategy, total):
    plan = planner.choose(NodePlans(chain()), strategy, StepBudget(total, FIXED), {})
    return simulator.estimate(chain(), plan, FIXED)


@pytest.mark.parametrize("strategy", BUDGETED)
def test_every_plan_fits_as_the_allocator_serves_it(strategy):
    plain = simulator.estimate(chain(), Plan.from_cuts(chain(), [], strategy="keep_all"), FIXED)
    assert plain.allocated_bytes > plain.peak_bytes
    low, high = least(strategy), int(1.05 * plain.needed_bytes)
    totals = [low + (high - low) * i // 9 for i in range(10)]
    steps = [chosen(strategy, total) for total in totals]
    assert all(step.needed_bytes <= total for step, total in zip(steps, totals))
    assert any(step.allocated_bytes > step.peak_bytes for step in steps)
    for tight, loose in itertools.pairwise(steps):
        assert loose.work <= tight.work
        assert tight.needed_bytes <= loose.needed_bytes
    if strategy is not careless:
        assert steps[-1].overhead == 0 < steps[0].overhead


@pytest.mark.parametrize("strategy", BUDGETED)
def test_the_least_budget_that_is_named_works_and_none_below(strategy):
    assert chosen(strategy, least(strategy)).needed_bytes <= least(strategy)
    with pytest.raises(InfeasibleBudgetError) as error:
        chosen(strategy, least(strategy) - 1)
    assert error.value.least == least(strategy)
    assert str(error.value) == (
        f"no plan fits in {least(strategy) - 1:,} bytes: the smallest budget that works is {least(strategy):,} bytes, "
        "set "
        f"by node {error.value.node!r}. Use a smaller batch or input, or that budget"
    )


@pytest.mark.parametrize("strategy", ["budget", ilp, own])
def test_a_budget_that_buffers_alone_would_meet_is_not_met(strategy):
    """A plan whose buffers meet a budget needs more than that from the allocator, for some budgets."""
    exceeded = 0
    for room in strategies.frontier(chain()).peaks:
        with contextlib.suppress(InfeasibleBudgetError):
            told = strategies.apply(strategy, chain(), budget=room)
            exceeded += simulator.estimate(chain(), told, FIXED).needed_bytes > room + FIXED
            assert chosen(strategy, room + FIXED).needed_bytes <= room + FIXED
    assert exceeded


@pytest.mark.parametrize("weights", [MB // 2, 200], ids=["weights", "weights that another pool serves"])
@pytest.mark.parametrize("xla", [False, True])
@pytest.mark.parametrize("mode", ["graph", "compiled"])
def test_a_plan_fits_in_what_it_needs_and_in_no_byte_less(mode, xla, weights):
    graph = dataclasses.replace(chain(weights), xla=xla)
    for plan in strategies.frontier(chain()).plans:
        need = simulator.estimate(graph, plan, 0, mode).needed_bytes
        assert simulator.fits(graph, plan, need, mode)
        assert not simulator.fits(graph, plan, need - 1, mode)


@pytest.mark.parametrize("mode", ["graph", "compiled"])
def test_a_share_is_one_of_the_plain_step_in_that_mode(mode):
    layers = [L.Conv2D(8, 3, padding="same", activation="gelu") for _ in range(5)]
    model = keras.Sequential([keras.Input((16, 16, 3)), *layers])
    plain = tfgc.estimate(model, 16, mode=mode).needed_bytes
    share, number = (tfgc.plan(model, 16, budget=budget, mode=mode) for budget in (0.7, int(0.7 * plain)))
    assert share.segments == number.segments
    assert tfgc.estimate(model, 16, share, mode=mode).needed_bytes <= 0.7 * plain


def test_no_step_is_replayed_after_one_that_needs_more(monkeypatch):
    allocate, asked = Allocator.allocate, []
    monkeypatch.setattr(Allocator, "allocate", lambda self, size: asked.append(size) or allocate(self, size))
    plan = Plan.from_cuts(chain(), [], strategy="keep_all")
    step = simulator.estimate(chain(), plan, 0)
    all_steps = len(asked)
    assert not simulator.fits(chain(), plan, step.peak_bytes)
    assert 0 < len(asked) - all_steps < all_steps / 2


def test_the_allocator_is_not_asked_where_the_buffers_alone_are_too_large(monkeypatch):
    plan = Plan.from_cuts(chain(), [], strategy="keep_all")
    peak = simulator.estimate(chain(), plan, 0).peak_bytes
    noted = []
    monkeypatch.setattr(allocation, "requested", noted.append)
    assert not simulator.fits(chain(), plan, peak - 1)
    assert not noted


def test_the_least_is_looked_for_in_all_of_the_front(monkeypatch):
    """The allocator may serve the twelfth plan of a front with less than the first."""
    plans = [f"plan {i}" for i in range(20)]
    needs = {f"plan {i}": 150 - 2 * i if i < 12 else 200 for i in range(20)}
    asked = []

    def estimate(graph, plan, fixed, mode):
        asked.append(plan)
        return type("Step", (), {"needed_bytes": needs[plan] + fixed, "node": plan})

    def predict(graph, plan, mode):
        i = plans.index(plan)
        return type("Step", (), {"peak_bytes": 100 + i, "work": -i})

    monkeypatch.setattr(simulator, "predict", predict)
    monkeypatch.setattr(simulator, "estimate", estimate)
    monkeypatch.setattr(simulator, "fits", lambda graph, plan, room, mode: needs[plan] <= room)
    front = Frontier(None, plans)
    with pytest.raises(InfeasibleBudgetError) as error:
        front.fitting(10, 5)
    assert (error.value.least, error.value.node) == (5 + 128, "plan 11")
    assert front.fitting(5 + 128, 5) == "plan 11"
    assert len(asked) == 20  # each once
    needs.update(dict.fromkeys(needs, 100))
    asked.clear()
    with pytest.raises(InfeasibleBudgetError):
        Frontier(None, plans).fitting(10, 5)
    assert asked == ["plan 0"]  # no other can need less
