"""Plans of a step that are simulated, operation by operation: few, and near those that are looked for.

Costs of segments are read off an order of the step, cuts are found by them (`cut_search`), and the best plan simulated
gives another order, nearer to its own, and more places around its cuts. At last these are moved while that helps. What
is simulated is the condensed step. All is bounded by counts.
"""

import dataclasses
import functools
import math
from collections.abc import Iterable, Iterator, Sequence

from tfgc import strategies
from tfgc._planning.blocks import Blocks, blocks, places, without_last
from tfgc._planning.cut_costs import CutCosts
from tfgc._planning.cut_search import Front, least_peak
from tfgc._rewrite.liveness import peak, timeline
from tfgc._rewrite.order import ordered
from tfgc._rewrite.recompute import Cut, recomputed
from tfgc._step.step import Step

# Places where segments may start, for all calls of a step together: for the least peak, and for a room.
_PLACES, _ROOM_PLACES = 100, 150
# Times that costs are read off a better plan, and what the next one has to come to for another time.
_ROUNDS, _BETTER = 4, 0.99
# Levels that are simulated each time, as multiples of the least peak that costs say, and once more at the end.
_LEVELS, _LAST_LEVELS = (1.005, 1.02), (1.0, 1.01, 1.03, 1.05)
# For a room: times that costs are read, levels that are tried each time, and what is aimed at.
_CLOCKS, _TRIES, _AIM = 2, 4, 0.995
# Moves of cuts that are tried until one helps: so many, or as many as simulate so many operations; all of them as a
# multiple of that; and blocks by which one is moved.
_MOVES, _MOVED, _MOST, _STEP = 120, 5_000, 3, 3


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A condensed step by some cuts, and what was simulated of it.

    Attributes:
        step: Its operations, in order.
        cuts: The cuts.
        peak_bytes: The most bytes of buffers at once.
        work: Work of the copies.
    """

    step: Step
    cuts: tuple[Cut, ...]
    peak_bytes: int
    work: int


class Candidates:
    """The candidates of a condensed step, simulated as they are asked for."""

    def __init__(self, step: Step) -> None:
        self.step = step
        self._has_least = False

    @functools.cached_property
    def regions(self) -> list[Blocks]:
        """The blocks before each outermost gradient call that reads a planned buffer."""
        outermost = [call for call, is_outermost in enumerate(self.step.calls, start=1) if is_outermost]
        return [found for call in outermost if (found := blocks(self.step, call)) is not None]

    def judged(self, cuts: Iterable[Cut]) -> Candidate:
        """The step by some cuts."""
        cuts = tuple(cuts)
        made = ordered(recomputed(self.step, cuts))
        return Candidate(made, cuts, peak(made), sum(op.work for op in made.ops.values() if op.segment))

    @functools.cached_property
    def _first(self) -> Candidate:
        """The step with every segment recomputed, evenly cut: its gradients run in another order than plain ones do."""
        return self.judged([cut for each in self.regions for cut in each.even_cuts()])

    @functools.cached_property
    def found(self) -> list[Candidate]:
        """All that was simulated; the order alone may do."""
        return [self.judged(()), self._first]

    def look_for_least(self) -> None:
        """Find those about the least peak, once."""
        if self._has_least:
            return
        self._has_least = True
        # Costs are off where replays begin early; the strategy of least peak knows nothing of that, and may be better.
        plans = ((each, strategies.apply("optimal", each.graph)) for each in self.regions)
        self.found.append(self.judged(cut for each, plan in plans for cut in each.cuts(plan)))
        best, before = min(self._first, self.found[-1], key=_by_peak), math.inf
        for _ in range(_ROUNDS):
            costs = self._costs(best, _PLACES)
            level = max(map(least_peak, costs))
            fronts = [Front(each, int(_LAST_LEVELS[-1] * level) + 1) for each in costs]
            judged = [self.judged(cuts) for cuts in self._cuts(fronts, [level * each for each in _LEVELS])]
            self.found += judged
            best = min([*judged, best], key=_by_peak)
            if best.peak_bytes > _BETTER * before:
                break
            before = best.peak_bytes
        self.found += [self.judged(cuts) for cuts in self._cuts(fronts, [level * each for each in _LAST_LEVELS])]
        self._polish()

    def _polish(self) -> None:
        """Move cuts of the best plan, those around its peak first, while that helps."""
        best = min(self.found, key=_by_peak)
        seen = {each.cuts for each in self.found}
        most = min(_MOVES, _MOVED // len(best.step.ops))
        left, last = _MOST * most, most
        helps = True
        while helps:
            helps = False
            for cuts in self._moved(best):
                if cuts not in seen and min(left, last):
                    left, last = left - 1, last - 1
                    seen.add(cuts)
                    self.found.append(self.judged(cuts))
                    if helps := _by_peak(self.found[-1]) < _by_peak(best):
                        best, last = self.found[-1], most
                        break

    def _moved(self, plan: Candidate) -> Iterator[tuple[Cut, ...]]:
        """The cuts of a plan with one of them moved, left out or added."""
        step, found = plan.step, timeline(plan.step)
        at = step.order[max(range(len(found)), key=found.__getitem__)]
        op = step.ops[at]
        region = next((each for each in self.regions if each.call == op.call), self.regions[0])
        place = region.gradients.get(at, region.place.get(op.traced if op.segment else at, len(region.numbers) - 1))
        own = {region.place[cut.behind]: cut for cut in plan.cuts if cut.behind in region.place}
        others = [cut for cut in plan.cuts if cut.behind not in region.place]
        moves = [(abs(k - place), {**own, k: None}) for k in own]
        for k in range(len(region.numbers) - 1):
            if k not in own:
                moves.append((abs(k - place), {**own, k: Cut(region.numbers[k])}))
                for j in (j for j in own if abs(j - k) <= _STEP):
                    moved = dataclasses.replace(own[j], behind=region.numbers[k])
                    moves.append((abs(k - place), {**own, j: None, k: moved}))
        for _, cuts in sorted(moves, key=lambda each: each[0]):
            yield (*others, *without_last(cut for _, cut in sorted(cuts.items()) if cut))

    def look_within(self, room: int) -> None:
        """Find those of least work below so many bytes."""
        last = self._first
        for _ in range(_CLOCKS):
            fronts = [Front(each, room) for each in self._costs(last, _ROOM_PLACES)]
            tried = [(0.0, 0.0)]  # levels, and what the plans need
            level = float(room)
            for _ in range(_TRIES):
                judged = [self.judged(cuts) for cuts in self._cuts(fronts, [level])]
                if not judged:
                    break
                self.found += judged
                last = judged[0]
                peak_bytes = last.peak_bytes
                if peak_bytes <= room:
                    break
                slope = (level - tried[-1][0]) / max(peak_bytes - tried[-1][1], 1)
                tried.append((level, peak_bytes))
                level -= max(1.0, slope) * (peak_bytes - _AIM * room)

    def _costs(self, plan: Candidate, count: int) -> list[CutCosts]:
        """What segments cost, read off the step by a plan, whose cuts have more places around them."""
        most = max(8, count // len(self.regions))
        found = []
        for each in self.regions:
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
                    for each, segments in zip(self.regions, found)
                    for cut in without_last(Cut(each.numbers[end - 1], keep) for _, end, keep in segments or ())
                ]


def _by_peak(plan: Candidate) -> tuple[int, int]:
    return plan.peak_bytes, plan.work
