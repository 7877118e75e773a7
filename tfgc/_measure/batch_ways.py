"""Ways of training, and the largest batch that each is predicted to reach within a budget."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from tfgc._core.plan import Plan
from tfgc._core.segments import Segmentation
from tfgc._measure import batch_search
from tfgc._planning.step_ahead import StepAhead
from tfgc._records.batch_limit import MOST
from tfgc._records.job import LargestBatch


class Step(NamedTuple):
    """What a step needs, what it asks for without the allocator's chunks, its plan, and the node at its peak."""

    needed_bytes: int
    asked_bytes: int
    plan: Plan | None
    node: str


class Way:
    """Training by whichever of some plans needs least, those of one batch and of the first one that none of them fits.

    `known` gives for a batch what makes and predicts plans for it, `plans_for` the plans to look at; None is plain
    training.
    """

    def __init__(
        self,
        known: Callable[[int], StepAhead],
        plans_for: Callable[[int], Sequence[Plan | None]],
    ) -> None:
        self._known, self._plans_for = known, plans_for
        self._plans: list[Plan | None] = []
        self._steps: dict[int, list[Step]] = {}

    def steps(self, batch: int) -> Sequence[Step]:
        """The steps to choose from at this batch, at least one."""
        steps = self._steps.setdefault(batch, [])
        steps += [self.estimated(batch, plan) for plan in self._plans[len(steps) :]]
        return steps

    def estimated(self, batch: int, plan: Plan | None) -> Step:
        """The step of a batch by a plan, or the plain one."""
        step = self._known(batch).estimate(plan)
        return Step(step.needed_bytes, step.peak_bytes, plan, step.node)

    def largest(self, budget: int) -> LargestBatch:
        """The largest batch that is predicted to fit in a budget."""
        self._add_plans_for(batch_search.FIRST)
        batch = batch_search.largest_fitting(self._need, budget)
        while batch < MOST:
            self._add_plans_for(batch + 1)
            if self._need(batch + 1)[0] > budget:
                break
            batch = batch_search.largest_fitting(self._need, budget)
        at = max(batch, 1)
        step, other = self._best(at), max(1, at // 2) if at > 1 else 2
        return LargestBatch(
            batch_size=batch,
            needed_bytes=step.needed_bytes,
            sample_bytes=(self._best(other).needed_bytes - step.needed_bytes) / (other - at),
            node=step.node,
            plan=None if step.plan is None else self._known(at).with_figures(step.plan).to_json(),
        )

    def _add_plans_for(self, batch: int) -> None:
        """Look at the plans for a batch as well, each but once."""
        for plan in self._plans_for(batch):
            if _ways(plan) not in map(_ways, self._plans):
                self._plans.append(plan)

    def _need(self, batch: int) -> tuple[int, int]:
        """What a step of this batch needs, and what it asks for without the allocator's chunks, each at least."""
        steps = self.steps(batch)
        return min(step.needed_bytes for step in steps), min(step.asked_bytes for step in steps)

    def _best(self, batch: int) -> Step:
        return min(self.steps(batch), key=lambda step: step.needed_bytes)


def _ways(plan: Segmentation | None) -> object:
    """What is equal for plans that run a model in the same way, whatever batch their bytes are of."""
    if plan is None:
        return None
    return [(s.nodes, s.mode, s.offload, _ways(s.inner)) for s in plan.segments]
