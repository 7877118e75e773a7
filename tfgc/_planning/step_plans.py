"""Which cuts a step gets: strategies propose, operation by operation the step is simulated, the best is taken.

A strategy sees the forward part of each outermost gradient call as a graph (`blocks`). Its front is thinned out, and
each plan of it rewritten and simulated on the condensed step, a tenth of the operations with the same peak. Cuts are
shared by the calls of a step, so that plans of the same peak are put together.
"""

import dataclasses
from collections.abc import Iterator, Sequence

from tfgc import strategies
from tfgc._errors import InfeasibleBudgetError
from tfgc._planning.blocks import Blocks, blocks
from tfgc._rewrite.liveness import peak
from tfgc._rewrite.order import ordered
from tfgc._rewrite.recompute import Cut, recomputed
from tfgc._step.condensed import condensed
from tfgc._step.step import Step

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
    """

    step: Step
    cuts: tuple[Cut, ...]
    peak_bytes: int
    plain_bytes: int
    overhead: float
    unchanged: str = ""


def rewritten(step: Step, room: int | None = None, strategy: str | None = None) -> Rewritten:
    """The step by the plan of least work that fits.

    Args:
        step: The step as traced.
        room: Bytes that its own buffers may take; None: the least that a plan reaches.
        strategy: The name of the strategy; None: all plans of the front.

    Raises:
        InfeasibleBudgetError: If no plan fits.
    """
    small = condensed(step)
    plain, work = peak(small), sum(op.work for op in step.ops.values())
    if room is not None and plain <= room:
        return Rewritten(step, (), plain, plain, 0.0, "the plain step fits")
    graphs = [found for call in _outermost(step) if (found := blocks(small, call)) is not None]
    if not graphs:
        return Rewritten(step, (), plain, plain, 0.0, "no gradient reads a large activation")
    found = []
    for cuts in _candidates(graphs, strategy):
        made = ordered(recomputed(small, cuts))
        found.append((peak(made), sum(op.work for op in made.ops.values() if op.segment) / max(work, 1), cuts))
    least = min(found, key=lambda each: (each[0], each[1]))
    if room is None:
        room = int(_NEAR * least[0])
        if least[0] > _GAIN * plain:
            return Rewritten(step, (), plain, plain, 0.0, "recomputing would save less than 5 % of the step")
    fitting = [each for each in found if each[0] <= room]
    if not fitting:
        raise InfeasibleBudgetError(room, least[0], "the step")
    peak_bytes, overhead, cuts = min(fitting, key=lambda each: (each[1], each[0]))
    return Rewritten(ordered(recomputed(step, cuts)), tuple(cuts), peak_bytes, plain, overhead)


def _outermost(step: Step) -> list[int]:
    return [call for call, is_outermost in enumerate(step.calls, start=1) if is_outermost]


def _candidates(graphs: Sequence[Blocks], strategy: str | None) -> Iterator[list[Cut]]:
    """Lists of cuts, from the least peak on."""
    yield []  # the order alone may do
    if strategy is not None:
        yield [cut for each in graphs for cut in each.cuts(strategies.apply(strategy, each.graph))]
        return
    fronts = [strategies.frontier(each.graph, "budget", positions=_PLACES, nested=False) for each in graphs]
    levels = sorted({level for front in fronts for level in front.peaks})
    places = (round(i * (len(levels) - 1) / _SIMULATED) for i in range(_SIMULATED))
    for level in (levels[place] for place in dict.fromkeys(places)):
        chosen = [
            next((plan for plan, found in reversed(front.front) if found.peak_bytes <= level), front.plans[0])
            for front in fronts
        ]
        yield [cut for each, plan in zip(graphs, chosen) for cut in each.cuts(plan)]
