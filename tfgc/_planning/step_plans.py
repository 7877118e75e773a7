"""Plans of a step: the least peak, the least work in a room, or that of a strategy by name.

Candidates are simulated on the condensed step, a fifth of the operations; what is chosen once more as a whole. A
strategy sees the forward part of each outermost gradient call as a graph (`blocks`). Cuts are shared by the calls.
"""

import dataclasses
import functools
from collections.abc import Collection, Sequence
from typing import Any

from tfgc import strategies
from tfgc._errors import InfeasibleBudgetError
from tfgc._planning import among_layers, named_layers
from tfgc._planning.among_layers import Spans
from tfgc._planning.candidates import Candidate, Candidates
from tfgc._planning.links import with_measured_link
from tfgc._planning.watch import ADDED
from tfgc._rewrite import on_host
from tfgc._rewrite.liveness import peak
from tfgc._rewrite.order import ordered
from tfgc._rewrite.recompute import Cut, recomputed
from tfgc._step.condensed import condensed
from tfgc._step.step import Step
from tfgc._units import parse_bytes
from tfgc.strategies import Strategy

# Plans that are put together whole, where the condensed step is not exactly like it.
_WHOLE = 3
# Budgets that a strategy is asked with until its plan is simulated to fit, and what is aimed at.
_TRIES, _AIM = 4, 0.97
# A plan that needs this much more than the least one is taken if it does less work.
_NEAR = 1.03
# What is gained has to be more than what peaks move by from step to step.
GAIN = 0.95


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
        strategy: The name of the strategy that chose the cuts; "" for the search.
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
        free: Operations of it whose results are never stored: what reads them later makes them again.
    """

    # What allocators add to a simulated peak, at most, before it was measured.
    added = ADDED

    def __init__(self, step: Step, free: Collection[int] = ()) -> None:
        self.step, self.free = step, free
        self._candidates = Candidates(condensed(step))
        self._work = sum(op.work for op in step.ops.values())

    @functools.cached_property
    def plain_bytes(self) -> int:
        """The most bytes of the plain step's own buffers at once."""
        return peak(self._candidates.step)

    def least(self) -> Rewritten:
        """The plan of least work of those within 3 % of the least peak; the plain step where 5 % or less is gained."""
        if not self._candidates.regions:
            return self.plain("no gradient reads a large activation")
        self._candidates.look_for_least()
        least = min(each.peak_bytes for each in self._candidates.found)
        plan = self._cheapest(int(_NEAR * least))
        if plan.peak_bytes > GAIN * self.plain_bytes:
            return self.plain("recomputing would save less than 5 % of the step")
        return plan

    def within(self, room: int) -> Rewritten:
        """The plan of least work whose simulated peak is at most so many bytes; the plain step where it fits.

        Raises:
            InfeasibleBudgetError: If no plan fits.
        """
        if self.plain_bytes <= room:
            return self.plain("the plain step fits")
        if not self._candidates.regions:
            raise InfeasibleBudgetError(room, self.plain_bytes, "the step")
        if room > 0:
            self._candidates.look_within(room)
        if min(each.peak_bytes for each in self._candidates.found) > room:
            self._candidates.look_for_least()
        least = min(each.peak_bytes for each in self._candidates.found)
        plan = self._cheapest(max(room, least))
        if plan.peak_bytes > room:
            raise InfeasibleBudgetError(room, plan.peak_bytes, "the step")
        return plan

    def by(self, strategy: Strategy, room: int | None = None, **options: Any) -> Rewritten:
        """The plan of one strategy, on the blocks of each gradient call; the plain step where it saves nothing.

        Args:
            strategy: Its name, or a function.
            room: Bytes, for a strategy that honours a budget.
            **options: Of the strategy.

        Raises:
            OptionError: If the strategy or an option is unknown.
            InfeasibleBudgetError: If the strategy has no plan that fits.
        """
        options = strategies.check_options(strategy, with_measured_link(options), room)
        options.pop("budget", None)
        if not self._candidates.regions:
            return self.plain("no gradient reads a large activation")
        budget = room
        for _ in range(_TRIES):
            plan = self._planned(strategy, budget, options)
            if room is None or budget is None or plan.peak_bytes <= room:
                return plan
            budget = int(_AIM * budget * room / plan.peak_bytes)  # strategies see less than what is simulated
        raise InfeasibleBudgetError(room or 0, plan.peak_bytes, "the step")

    def among(self, spans: Sequence[Spans], room: int) -> Rewritten:
        """The step with as few layers recomputed, of those with these spans, as fit in a room; all if too few do."""
        if self.plain_bytes <= room:
            return self.plain("the plain step fits")
        plan = self._whole(among_layers.fewest(self._candidates.step, spans, room, self._candidates.judged))
        return plan if plan.peak_bytes < self.plain_bytes else self.plain("recomputing these layers saves nothing")

    def by_cuts(self, cuts: Sequence[Cut], strategy: str) -> Rewritten:
        """The step cut where a plan says; the plain step where it saves nothing."""
        plan = self._whole(self._candidates.judged(cuts), strategy)
        if plan.peak_bytes < plan.plain_bytes:
            return plan
        return self.plain(f"strategy {strategy!r} saves nothing of the step")

    def plain(self, why: str) -> Rewritten:
        """The step as it is, and why."""
        return Rewritten(self.step, (), self.plain_bytes, self.plain_bytes, 0.0, why)

    def _planned(self, strategy: Strategy, budget: int | None, options: dict[str, Any]) -> Rewritten:
        name = strategy if isinstance(strategy, str) else getattr(strategy, "__name__", "")
        cuts = []
        for region in self._candidates.regions:
            if strategy == "manual":
                cuts += region.cuts_behind(named_layers.ends(self.step, options["keep"]))
            else:
                cuts += region.cuts(strategies.apply(strategy, region.graph, budget=budget, **options))
        cuts = self._within_host(cuts, options.get("host_budget"))
        plan = self.by_cuts(cuts, name)
        is_again = any(op.segment for op in plan.step.ops.values())
        return plan if is_again or plan.unchanged else self.plain(f"strategy {name!r} recomputes nothing")

    def _within_host(self, cuts: list[Cut], room: Any) -> list[Cut]:
        """Cuts of which fewer store on the host, the last ones first, where that would hold more than there is room."""
        while room is not None and on_host.host_bytes(self._candidates.judged(cuts).step) > parse_bytes(room):
            last = max(k for k, cut in enumerate(cuts) if cut.offload)
            cuts[last] = dataclasses.replace(cuts[last], offload=False)
        return cuts

    def _cheapest(self, room: int) -> Rewritten:
        """The plan of least work that fits; of those that do so as simulated whole, if there is one."""
        fitting = [each for each in self._candidates.found if each.peak_bytes <= room]
        fitting.sort(key=lambda each: (each.work, each.peak_bytes))
        wholes = []
        for each in (*fitting[:_WHOLE], min(fitting, key=lambda each: each.peak_bytes)):
            wholes.append(self._whole(each))
            if wholes[-1].peak_bytes <= room:
                return wholes[-1]
        return min(wholes, key=lambda each: each.peak_bytes)

    def _whole(self, found: Candidate, strategy: str = "") -> Rewritten:
        """The step itself by the plan of a candidate."""
        step = ordered(recomputed(self.step, found.cuts, self.free))
        more = found.work / max(self._work, 1)
        return Rewritten(step, found.cuts, peak(step), self.plain_bytes, more, strategy=strategy)
