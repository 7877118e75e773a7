"""A way of training, and the largest batch that it is predicted to reach within a budget."""

from collections.abc import Sequence
from typing import NamedTuple

from tfgc._core.plan import Plan
from tfgc._measure import batch_search
from tfgc._records.batch_limit import MOST
from tfgc._records.reply import LargestBatch


class Step(NamedTuple):
    """What a step needs, what it asks for without the allocator's chunks, its plan, and the node at its peak."""

    needed_bytes: int
    asked_bytes: int
    plan: Plan | None
    node: str


class Way:
    """A way of training, with the steps that it may take at each batch.

    Attributes:
        above: How many batches in a row must be predicted not to fit above the one that does.
    """

    above = batch_search.ABOVE

    def steps(self, batch: int) -> Sequence[Step]:
        """The steps to choose from at this batch, at least one."""
        raise NotImplementedError

    def finished(self, plan: Plan, batch: int) -> Plan:
        """The plan with its figures for this batch."""
        raise NotImplementedError

    def add_plans_for(self, batch: int) -> bool:
        """Look for more plans at this batch; return whether there was anything to look for."""
        return False

    def largest(self, budget: int) -> LargestBatch:
        """The largest batch that is predicted to fit in a budget."""
        batch = batch_search.largest_fitting(self._need, budget, above=self.above)
        while batch < MOST and self.add_plans_for(batch + 1) and self._need(batch + 1)[0] <= budget:
            batch = batch_search.largest_fitting(self._need, budget, above=self.above)
        at = max(batch, 1)
        step, plan = self._best(at), None
        other = max(1, at // 2) if at > 1 else 2
        if step.plan is not None:
            plan = self.finished(step.plan, at).to_json()
        return LargestBatch(
            batch_size=batch,
            needed_bytes=step.needed_bytes,
            sample_bytes=(self._best(other).needed_bytes - step.needed_bytes) / (other - at),
            node=step.node,
            plan=plan,
        )

    def _need(self, batch: int) -> tuple[int, int]:
        """What a step of this batch needs, and what it asks for without the allocator's chunks, each at least."""
        steps = self.steps(batch)
        return min(step.needed_bytes for step in steps), min(step.asked_bytes for step in steps)

    def _best(self, batch: int) -> Step:
        return min(self.steps(batch), key=lambda step: step.needed_bytes)
