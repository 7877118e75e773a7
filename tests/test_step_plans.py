"""Plans of steps written by hand: against all cuts by brute force, and bounded for wide steps."""

import itertools
import random
import statistics

import pytest

from tfgc import InfeasibleBudgetError, OptionError
from tfgc._planning import candidates
from tfgc._planning.step_plans import StepPlans
from tfgc._rewrite.liveness import peak
from tfgc._rewrite.on_host import host_bytes
from tfgc._rewrite.order import ordered
from tfgc._rewrite.recompute import Cut, recomputed
from tfgc._step.step import Op, Step

MB = 1 << 20


def step_of(reads, sizes, calls=1):
    """A step of blocks: each reads earlier ones (-1: the input), and a gradient call reads and differentiates all."""
    ops = {0: Op("x", "Placeholder", sizes=(8 * MB,))}
    for k, (inputs, size) in enumerate(zip(reads, sizes), start=1):
        ops[k] = Op(f"f{k}", "MatMul", tuple((i + 1, 0) for i in inputs), sizes=(size,), work=100 + size // MB)
    n, results = len(sizes), []
    for call in range(1, calls + 1):
        gradient = {}
        for k in range(n, 0, -1):
            above = [gradient[j] for j in range(k + 1, n + 1) if k - 1 in reads[j - 1]]
            number = len(ops)
            inputs = tuple((i, 0) for i in (k, *above))
            ops[number] = Op(
                f"g{call}.{k}", "MatMul", inputs, sizes=(sizes[k - 1],), call=call, is_gradient=True, work=200
            )
            gradient[k] = number
        number = len(ops)
        ops[number] = Op(f"end{call}", "Sum", ((gradient[1], 0),), sizes=(4,), call=call, is_gradient=True)
        results.append((number, 0))
    return Step(ops, tuple(ops), tuple(results), (True,) * calls)


def random_step(seed, n=9):
    draws = random.Random(seed)
    reads = [(k - 1, draws.randrange(-1, k - 1)) if k > 1 and draws.random() < 0.3 else (k - 1,) for k in range(n)]
    return step_of(reads, [draws.choice((1, 2, 4)) * MB for _ in range(n)])


def by_brute_force(step, n):
    """Peak and work of the copies of all cuts without nesting."""
    for ends in itertools.chain.from_iterable(itertools.combinations(range(1, n), k) for k in range(n)):
        made = ordered(recomputed(step, [Cut(end) for end in ends]))
        yield peak(made), sum(op.work for op in made.ops.values() if op.segment)


def work_of(plan):
    return sum(op.work for op in plan.step.ops.values() if op.segment)


def test_the_least_peak_is_about_that_of_all_cuts():
    ratios = []
    for seed in range(8):
        step = random_step(seed)
        plan = StepPlans(step).least()
        assert plan.peak_bytes == peak(plan.step)
        ratios.append(plan.peak_bytes / min(by_brute_force(step, 9))[0])
    assert max(ratios) <= 1.15
    assert statistics.mean(ratios) <= 1.02


@pytest.mark.parametrize("seed", range(4))
def test_a_room_is_kept_by_little_work(seed):
    step = random_step(seed)
    found, plans = list(by_brute_force(step, 9)), StepPlans(step)
    least, plain = plans.least().peak_bytes, plans.plain_bytes
    for share in (0.3, 0.6, 0.9):
        room = int(least + share * (plain - least))
        plan = plans.within(room)
        best = min(work for peak_bytes, work in found if peak_bytes <= room)
        assert plan.peak_bytes == peak(plan.step) <= room
        assert work_of(plan) <= best + 0.05 * sum(op.work for op in step.ops.values())


def test_a_room_that_the_plain_step_fits_changes_nothing():
    step = random_step(0)
    plan = StepPlans(step).within(10**9)
    assert (plan.step, plan.cuts, plan.overhead) == (step, (), 0)
    assert plan.unchanged


def test_a_room_below_the_least_peak_names_that():
    plans = StepPlans(random_step(0))
    with pytest.raises(InfeasibleBudgetError) as caught:
        plans.within(MB)
    assert caught.value.least <= plans.least().peak_bytes < plans.plain_bytes


@pytest.mark.parametrize("calls", [2, 5])
def test_a_step_of_several_gradient_calls_never_needs_more_than_plain(calls):
    step = step_of([(k - 1,) for k in range(16)], [MB] * 16, calls)
    plans = StepPlans(step)
    plan = plans.least()
    assert peak(plan.step) <= plans.plain_bytes
    room = (plan.peak_bytes + plans.plain_bytes) // 2
    assert peak(plans.within(room).step) <= room


@pytest.mark.parametrize("name", ["branches", "chain", "calls"])
def test_few_plans_are_simulated_of_any_step(name, monkeypatch):
    steps = {
        "branches": lambda: step_of([(-1,)] + [(0,)] * 60 + [tuple(range(1, 61))], [MB] * 62),
        "chain": lambda: step_of([(k - 1,) for k in range(150)], [MB] * 150),
        "calls": lambda: step_of([(k - 1,) for k in range(8)], [MB] * 8, 12),
    }
    simulated = []
    monkeypatch.setattr(candidates, "ordered", lambda step: simulated.append(step) or ordered(step))
    monkeypatch.setattr(candidates, "ordered", lambda step: simulated.append(step) or ordered(step))
    plans = StepPlans(steps[name]())
    plan = plans.least()
    assert peak(plan.step) <= plans.plain_bytes
    assert len(simulated) <= 60
    if name == "chain":  # of the square root of so many at least
        assert plan.peak_bytes <= 3 * 150**0.5 * MB


def test_a_strategy_is_asked_with_its_options():
    plans = StepPlans(random_step(1))
    plan = plans.by("sqrt", segments=3)
    assert plan.strategy == "sqrt"
    assert len(plan.cuts) == 2
    room = (plans.least().peak_bytes + plans.plain_bytes) // 2
    assert peak(plans.by("budget", room=room).step) <= room
    for strategy, options in (("sqr", {}), ("sqrt", {"parts": 3}), ("sqrt", {"room": room})):
        with pytest.raises(OptionError):
            plans.by(strategy, **options)


def by_thirds(n, offload):
    """A chain of blocks of a megabyte, of which every three are recomputed, but for the last ones."""
    step = step_of([(k - 1,) for k in range(n)], [MB] * n)
    return ordered(recomputed(step, [Cut(k, offload=offload) for k in range(3, n, 3)]))


def test_a_buffer_goes_to_the_host_as_soon_as_it_is_made_and_comes_back_ahead_of_its_use():
    """The first segment reads what belongs to the caller, and the last one keeps its input."""
    made = by_thirds(12, offload=True)
    assert " ".join(made.ops[i].name for i in made.order) == (
        "x f1 f2 f3 to_host/1/f3 f4 f5 f6 to_host/0/f6 f7 f8 f9 f10 f11 f12 g1.12 g1.11 g1.10 from_host/0/f6 "
        "from_host/1/f3 again/1/2/f7 again/1/2/f8 again/1/2/f9 g1.9 g1.8 g1.7 g1.6 again/1/1/f4 again/1/1/f5 g1.5 g1.4 "
        "g1.3 again/1/0/f1 again/1/0/f2 g1.2 g1.1 end1"
    )


def test_the_peak_counts_a_buffer_on_the_host_while_it_is_on_the_device():
    peaks = {n: (peak(by_thirds(n, True)) // MB, host_bytes(by_thirds(n, True)) // MB) for n in (12, 15, 18)}
    assert peaks == {12: (7, 2), 15: (7, 3), 18: (7, 4)}
    assert peak(by_thirds(18, False)) - peak(by_thirds(12, False)) == 2 * MB


def test_the_host_holds_no_more_than_it_may():
    plans = StepPlans(step_of([(k - 1,) for k in range(24)], [MB] * 24))
    free, bound = plans.by("offload"), plans.by("offload", host_budget="4MiB")
    assert host_bytes(free.step) > 4 * MB >= host_bytes(bound.step) > 0
    assert free.peak_bytes < bound.peak_bytes < plans.least().peak_bytes
