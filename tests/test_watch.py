"""When a plan changes by what steps need: plans are named by bytes, and do less work the more they need."""

import dataclasses

import pytest

from tfgc import InfeasibleBudgetError
from tfgc._planning.watch import Watch

FRONT = range(500, 1001, 50)


@dataclasses.dataclass(frozen=True)
class Step:
    peak_bytes: int
    unchanged: str = ""

    @property
    def overhead(self):
        return 1 - self.peak_bytes / 1000


def run(budget, first, needs, front=FRONT):
    """The plans that steps run by, each of which needs `needs(plan, step)`; the last one where all are refused."""
    plans = {peak: Step(peak) for peak in front}

    def within(room):
        fitting = [peak for peak in plans if peak <= room]
        if not fitting:
            raise InfeasibleBudgetError(room, min(plans), "step")
        return plans[max(fitting)]

    watch, now, ran = Watch(plans[first], 0, 0, budget, None), plans[first], []
    for step in range(12):
        ran.append(now.peak_bytes)
        watch.saw(needs(now.peak_bytes, step))
        if (found := watch.next(within, lambda: plans[min(plans)])) is not None:
            watch.use(found)
            now = found
    return ran


@pytest.mark.parametrize(
    ("budget", "first", "needs", "ran"),
    [
        (800, 750, lambda plan, step: plan, [750] * 12),  # more than 95 % is used
        (800, 700, lambda plan, step: 1.2 * plan, [700, *[650] * 11]),  # at once, where it is above
        (800, 600, lambda plan, step: plan, [600] * 3 + [750] * 9),  # after three steps, where there is room
        (800, 600, lambda plan, step: plan * (1 + 0.2 * (plan > 600)), [600] * 3 + [750] + [600] * 8),  # and back
        (800, 800, lambda plan, step: plan + 9 * (step == 6), [800] * 7 + [750] * 5),  # watched on
        (800, 1000, lambda plan, step: max(plan, 801) if plan > 500 else plan, [1000, 750, 700, *[650] * 9]),  # thrice
        (510, 500, lambda plan, step: plan + 20 * (step % 2), [500] * 12),  # no plan needs less
    ],
)
def test_plans_change(budget, first, needs, ran):
    assert run(budget, first, needs) == ran


def test_a_budget_is_refused_if_three_steps_by_the_least_plan_need_more():
    with pytest.raises(InfeasibleBudgetError, match=r"510 bytes as measured: .* 550") as error:
        run(510, 600, lambda plan, step: 1.1 * plan)
    assert error.value.least == pytest.approx(550)
