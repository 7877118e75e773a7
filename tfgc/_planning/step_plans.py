"""Which cuts a step gets: strategies propose, operation by operation the step is simulated, the best is taken.

A strategy sees the forward part of each outermost gradient call as a graph (`blocks`). Its front is thinned out, and
each plan of it rewritten and simulated on the condensed step, a tenth of the operations with the same peak. Cuts are
shared by the calls of a step, so that plans of the same peak are put together.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

from tfgc import strategies
from tfgc._errors import InfeasibleBudgetError
from tfgc._planning.blocks import Blocks, blocks
from tfgc._rewrite.liveness import peak
from tfgc._rewrite.order import ordered
from tfgc._rewrite.recompute import Cut, recomputed
from tfgc._step.condensed import condensed
from tfgc._step.step import Step
from tfgc.strategies import Strategy

# Places where segments may start in the front of a call, and plans of a front that are simulated.
_PLACES, _SIMULATED = 25, 16
# A plan that needs this much more than the least one is taken if it does less work.
_NEAR = 1.02
# What is gained has to be more than what peaks move by from step to step.
_GAIN = 0.95


@dataclasses.dataclass(frozen=True)
class Rewritten:
    """A step by a plan.

    Attributes:
        step: The operations in the order in which they run; the traced step where nothing is gained.
        cuts: Where its forward part is cut.
        peak_bytes: The most bytes of the step's own buffers at once, as simulated.
        plain_bytes: The same of the traced step.
        overhead: Work of the copies, as a fraction of that of the traced step.
        unchanged: Why nothing is recomputed, or "".
        strategy: The name of what chose the cuts; "" for the search over all of the front.
    """

    step: Step
    cuts: tuple[Cut, ...]
    peak_bytes: int
    plain_bytes: int
    overhead: float
    unchanged: str = ""
    strategy: str = ""


class StepPlans:
    """The plans of one step, found as they are asked for.

    Args:
        step: The step as traced.
    """

    def __init__(self, step: Step) -> None:
        self._step = step
        self._small = condensed(step)
        self._work = sum(op.work for op in step.ops.values())
        self.plain_bytes = peak(self._small)

    def least(self) -> Rewritten:
        """The plan of least work of those within 2 % of the least peak; the plain step where 5 % or less is gained."""
        if not self._graphs:
            return self._plain("no gradient reads a large activation")
        least = min(each.peak_bytes for each in self._front)
        if least > _GAIN * self.plain_bytes:
            return self._plain("recomputing would save less than 5 % of the step")
        return self.within(int(_NEAR * least))

    def within(self, room: int) -> Rewritten:
        """The plan of least work whose simulated peak is at most so many bytes; the plain step where it fits.

        Raises:
            InfeasibleBudgetError: If no plan fits.
        """
        if self.plain_bytes <= room:
            return self._plain("the plain step fits")
        if not self._graphs:
            raise InfeasibleBudgetError(room, self.plain_bytes, "the step")
        fitting = [each for each in self._front if each.peak_bytes <= room]
        if not fitting:
            raise InfeasibleBudgetError(room, min(each.peak_bytes for each in self._front), "the step")
        return self._whole(min(fitting, key=lambda each: (each.overhead, each.peak_bytes)))

    def by(self, strategy: Strategy, room: int | None = None, **options: Any) -> Rewritten:
        """The plan of one strategy, on the blocks of each gradient call.

        Args:
            strategy: Its name, or a function.
            room: Bytes, for a strategy that honours a budget.
            **options: Of the strategy.

        Raises:
            OptionError: If the strategy or an option is unknown.
            InfeasibleBudgetError: If the strategy has no plan that fits.
        """
        graphs = self._graphs
        if not graphs:
            strategies.check_options(strategy, options, room)
            return self._plain("no gradient reads a large activation")
        cuts = [
            cut for each in graphs for cut in each.cuts(strategies.apply(strategy, each.graph, budget=room, **options))
        ]
        name = strategy if isinstance(strategy, str) else getattr(strategy, "__name__", "")
        return self._whole(self._judged(cuts, name))

    @functools.cached_property
    def _graphs(self) -> list[Blocks]:
        outermost = [call for call, is_outermost in enumerate(self._step.calls, start=1) if is_outermost]
        return [found for call in outermost if (found := blocks(self._small, call)) is not None]

    @functools.cached_property
    def _front(self) -> list[Rewritten]:
        return [self._judged(cuts) for cuts in _candidates(self._graphs)]

    def _plain(self, why: str) -> Rewritten:
        return Rewritten(self._step, (), self.plain_bytes, self.plain_bytes, 0.0, why)

    def _judged(self, cuts: Sequence[Cut], strategy: str = "") -> Rewritten:
        """The condensed step by some cuts."""
        made = ordered(recomputed(self._small, cuts))
        more = sum(op.work for op in made.ops.values() if op.segment) / max(self._work, 1)
        return Rewritten(made, tuple(cuts), peak(made), self.plain_bytes, more, strategy=strategy)

    def _whole(self, found: Rewritten) -> Rewritten:
        """The same plan of the step itself."""
        return dataclasses.replace(found, step=ordered(recomputed(self._step, found.cuts)))


def _candidates(graphs: Sequence[Blocks]) -> Iterator[list[Cut]]:
    """Lists of cuts, from the least peak on."""
    yield []  # the order alone may do
    fronts = [strategies.frontier(each.graph, "budget", positions=_PLACES, nested=False) for each in graphs]
    levels = sorted({level for front in fronts for level in front.peaks})
    places = (round(i * (len(levels) - 1) / _SIMULATED) for i in range(_SIMULATED))
    for level in (levels[place] for place in dict.fromkeys(places)):
        chosen = [
            next((plan for plan, found in reversed(front.front) if found.peak_bytes <= level), front.plans[0])
            for front in fronts
        ]
        yield [cut for each, plan in zip(graphs, chosen) for cut in each.cuts(plan)]
