"""Which cuts a step gets: strategies propose, operation by operation the step is simulated, the best is taken.

A strategy sees the forward part of each outermost gradient call as a graph (`blocks`). Its front is thinned out, and
each plan of it rewritten and simulated on the condensed step, a tenth of the operations with the same peak. Cuts are
shared by the calls of a step, so that plans of the same peak are put together.
"""

import dataclasses
import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tfgc import strategies
from tfgc._errors import InfeasibleBudgetError
from tfgc._planning.blocks import Blocks, blocks, without_last
from tfgc._planning.cut_costs import CutCosts, places
from tfgc._planning.cut_search import Front, least_peak
from tfgc._rewrite.liveness import peak
from tfgc._rewrite.order import ordered
from tfgc._rewrite.recompute import Cut, recomputed
from tfgc._step.condensed import condensed
from tfgc._step.step import Step
from tfgc.strategies import Strategy

# Places where segments may start, for all calls of a step together.
_PLACES = 150
# Times that costs are read off a better plan, and what the next one has to come to for another time.
_ROUNDS, _BETTER = 4, 0.99
# Levels that are simulated each time, as multiples of the least peak that costs say, and once more at the end.
_LEVELS, _LAST_LEVELS = (1.005, 1.02), (1.0, 1.01, 1.03, 1.05)
# For a room: times that costs are read, levels that are tried each time, and what is aimed at.
_CLOCKS, _TRIES, _AIM = 2, 4, 0.995
# Plans that are put together whole, where the condensed step is not exactly like it.
_WHOLE = 3
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
        self._is_looked_for = False

    def least(self) -> Rewritten:
        """The plan of least work of those within 2 % of the least peak; the plain step where 5 % or less is gained."""
        if not self._regions:
            return self._plain("no gradient reads a large activation")
        self._look_for_least()
        least = min(each.peak_bytes for each in self._found)
        if least > _GAIN * self.plain_bytes:
            return self._plain("recomputing would save less than 5 % of the step")
        return self._cheapest(int(_NEAR * least))

    def within(self, room: int) -> Rewritten:
        """The plan of least work whose simulated peak is at most so many bytes; the plain step where it fits.

        Raises:
            InfeasibleBudgetError: If no plan fits.
        """
        if self.plain_bytes <= room:
            return self._plain("the plain step fits")
        if not self._regions:
            raise InfeasibleBudgetError(room, self.plain_bytes, "the step")
        if room > 0:
            self._look_within(room)
        if min(each.peak_bytes for each in self._found) > room:
            self._look_for_least()
        least = min(each.peak_bytes for each in self._found)
        if least > room:
            raise InfeasibleBudgetError(room, least, "the step")
        return self._cheapest(room)

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
        graphs = self._regions
        if not graphs:
            strategies.check_options(strategy, options, room)
            return self._plain("no gradient reads a large activation")
        cuts = [
            cut for each in graphs for cut in each.cuts(strategies.apply(strategy, each.graph, budget=room, **options))
        ]
        name = strategy if isinstance(strategy, str) else getattr(strategy, "__name__", "")
        return self._whole(self._judged(cuts, name))

    @functools.cached_property
    def _regions(self) -> list[Blocks]:
        outermost = [call for call, is_outermost in enumerate(self._step.calls, start=1) if is_outermost]
        return [found for call in outermost if (found := blocks(self._small, call)) is not None]

    @functools.cached_property
    def _first(self) -> Rewritten:
        """The step with every segment recomputed, evenly cut: its gradients run in another order than plain ones do."""
        return self._judged([cut for each in self._regions for cut in each.even_cuts()])

    @functools.cached_property
    def _found(self) -> list[Rewritten]:
        """All that was simulated; the order alone may do."""
        return [self._judged(()), self._first]

    def _look_for_least(self) -> None:
        if self._is_looked_for:
            return
        self._is_looked_for = True
        best, before = self._first, math.inf
        for _ in range(_ROUNDS):
            costs = self._costs(best)
            level = max(map(least_peak, costs))
            fronts = [Front(each, int(_LAST_LEVELS[-1] * level) + 1) for each in costs]
            judged = [self._judged(cuts) for cuts in self._cuts(fronts, [level * each for each in _LEVELS])]
            self._found += judged
            best = min([*judged, best], key=lambda each: (each.peak_bytes, each.overhead))
            if best.peak_bytes > _BETTER * before:
                break
            before = best.peak_bytes
        self._found += [self._judged(cuts) for cuts in self._cuts(fronts, [level * each for each in _LAST_LEVELS])]

    def _look_within(self, room: int) -> None:
        last = self._first
        for _ in range(_CLOCKS):
            fronts = [Front(each, room) for each in self._costs(last)]
            tried = [(0.0, 0.0)]  # levels, and what the plans need
            level = float(room)
            for _ in range(_TRIES):
                judged = [self._judged(cuts) for cuts in self._cuts(fronts, [level])]
                if not judged:
                    break
                self._found += judged
                last = judged[0]
                peak_bytes = last.peak_bytes
                if peak_bytes <= room:
                    break
                slope = (level - tried[-1][0]) / max(peak_bytes - tried[-1][1], 1)
                tried.append((level, peak_bytes))
                level -= max(1.0, slope) * (peak_bytes - _AIM * room)

    def _costs(self, plan: Rewritten) -> list[CutCosts]:
        """What segments cost, read off the step by a plan, whose cuts have more places around them."""
        most = max(8, _PLACES // len(self._regions))
        found = []
        for each in self._regions:
            near = [each.place[cut.behind] + 1 for cut in plan.cuts if cut.behind in each.place]
            found.append(CutCosts(each, places(each, most, near if plan is not self._first else ()), plan.step))
        return found

    def _cuts(self, fronts: Sequence[Front], levels: Iterable[float]) -> Iterator[list[Cut]]:
        seen = []
        for level in levels:
            found = [each.within(level) for each in fronts]
            if None not in found and found not in seen:
                seen.append(found)
                yield [
                    cut
                    for each, segments in zip(self._regions, found)
                    for cut in without_last(Cut(each.numbers[end - 1], keep) for _, end, keep in segments or ())
                ]

    def _cheapest(self, room: int) -> Rewritten:
        """The plan of least work that fits; of those that do so as simulated whole, if there is one."""
        fitting = [each for each in self._found if each.peak_bytes <= room]
        fitting.sort(key=lambda each: (each.overhead, each.peak_bytes))
        wholes = []
        for each in fitting[:_WHOLE]:
            wholes.append(self._whole(each))
            if wholes[-1].peak_bytes <= room:
                return wholes[-1]
        return min(wholes, key=lambda each: each.peak_bytes)

    def _plain(self, why: str) -> Rewritten:
        return Rewritten(self._step, (), self.plain_bytes, self.plain_bytes, 0.0, why)

    def _judged(self, cuts: Sequence[Cut], strategy: str = "") -> Rewritten:
        """The condensed step by some cuts."""
        made = ordered(recomputed(self._small, cuts))
        more = sum(op.work for op in made.ops.values() if op.segment) / max(self._work, 1)
        return Rewritten(made, tuple(cuts), peak(made), self.plain_bytes, more, strategy=strategy)

    def _whole(self, found: Rewritten) -> Rewritten:
        """The same plan of the step itself."""
        step = ordered(recomputed(self._step, found.cuts))
        return dataclasses.replace(found, step=step, peak_bytes=peak(step))
