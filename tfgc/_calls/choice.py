"""Which layers of a step to recompute: a search through sets of them, judged by the simulator.

The sets on a tree are too many to try. A first round makes plausible ones: the layers of one class at one depth; and
for a series of limits the tree is gone through from left to right with the bytes held so far, where a call is
recomputed as a whole if what it needs fits under the limit, else gone into. A second round improves the best of these
by one change at a time: leave a layer out, put what is inside of it or around it in its place, add one. That finds the
least peak. Only for a front the second round is done again at higher prices of work, and a third one keeps one layer
more at a time. A test compares what is found with the best of all sets on small trees.

Every set that was judged is kept: budgets buy from all of those, so that a larger budget never gives a slower plan.
Of sets with equal buffers some need less of the allocator.
"""

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Sequence

from tfgc._calls import sweep
from tfgc._calls.options import Choice, Option, pieces_of, reduced
from tfgc._calls.simulation import Outcome, Simulator
from tfgc._calls.step import Call

# What a doubled step may cost in shares of the plain peak: least peak first, then less and less.
_PRICES = (0.05, 0.5, 2.0)
# And what each replay costs: many small ones for a tenth of a per cent are not worth their overhead.
_PER_REPLAY = 0.0005
# Operations simulated in one search, shared among the prices.
_EFFORT = 600_000
_LIMITS = 16
_MOST_ADDED = 12


@dataclasses.dataclass(frozen=True)
class Judged:
    """A choice and what the step needs with it."""

    choice: Choice
    outcome: Outcome


class Search:
    """The search for one step: `plain` is the plain one, `least` has the least peak, almost regardless of work."""

    def __init__(self, simulator: Simulator, options: Sequence[Option]) -> None:
        self._simulator, self._options = simulator, options
        self._judged: dict[Choice, Judged] = {}
        self._left = _EFFORT
        self.plain = self.judge(())
        self._by_layer: dict[int, list[Option]] = {}
        for option in options:
            self._by_layer.setdefault(id(option.layer), []).append(option)
        for choice in self._first():
            self.judge(choice)
        self._improve(_PRICES[0])
        self.least = min(self._judged.values(), key=lambda judged: self._cost(judged, _PRICES[0]))

    def judge(self, options: Iterable[Option]) -> Judged:
        """What a choice needs, worked out once."""
        choice = reduced(options)
        if choice not in self._judged:
            pieces = pieces_of(choice)
            self._judged[choice] = Judged(choice, self._simulator.outcome(pieces))
            self._left -= len(self._simulator.step.operations) + 40 * len(pieces)
        return self._judged[choice]

    @functools.cached_property
    def front(self) -> list[Judged]:
        """The choices that no other one beats both in peak and in work, from the least peak to the plain step."""
        for price in _PRICES[1:]:
            self._improve(price)
        self._thin_out(self.least.choice)
        self._store_more()
        # Of choices that differ by less than a thousandth of the step's work, the one of least peak.
        gain = self._simulator.step.work / 1000
        found: list[Judged] = []
        known = self._judged.values()
        for judged in sorted(known, key=lambda j: (j.outcome.peak_bytes, j.outcome.work, len(j.choice))):
            if not found or judged.outcome.work < found[-1].outcome.work - gain:
                found.append(judged)
        return found if found[-1] is self.plain else [*found, self.plain]

    @functools.cached_property
    def judged(self) -> list[Judged]:
        """All choices that were judged, from the plain step to those of most work."""
        assert self.front
        return sorted(self._judged.values(), key=lambda j: (j.outcome.work, len(j.choice), j.outcome.peak_bytes))

    def _cost(self, judged: Judged, price: float) -> float:
        peak = judged.outcome.peak_bytes / max(self.plain.outcome.peak_bytes, 1)
        work = judged.outcome.work / max(self._simulator.step.work, 1)
        return peak + price * work + _PER_REPLAY * sum(len(option.pieces) for option in judged.choice)

    def _first(self) -> Iterator[Iterable[Option]]:
        whole = {id(option.layer): option for option in self._options if option.plan is None and not option.selective}
        plain = self.plain.outcome.peak_bytes
        for i in range(1, _LIMITS + 1):
            yield sweep.under(self._simulator, whole, plain * i // _LIMITS)
        kinds: dict[tuple, list[Option]] = {}
        for option in whole.values():
            kinds.setdefault((type(option.layer), option.calls[0].depth), []).append(option)
        for alike in kinds.values():
            yield alike
            yield alike[:-1]
        planned = [option for option in self._options if option.plan is not None]
        for option in planned:
            yield [option]
        if planned:
            parts = [options for options in self._by_layer.values() if options[0] in planned or options[-1] in planned]
            for i in range(max(map(len, parts))):
                yield [options[min(i, len(options) - 1)] for options in parts]

    def _improve(self, price: float) -> None:
        """Change the best choice, one thing at a time, as long as that helps."""
        least_left = self._left - _EFFORT // len(_PRICES)
        best = min(self._judged.values(), key=lambda judged: self._cost(judged, price))
        moved = True
        while moved:
            moved = False
            for options in self._changed(best.choice, selective=price > _PRICES[0]):
                if self._left < least_left:
                    return
                judged = self.judge(options)
                if self._cost(judged, price) < self._cost(best, price):
                    best, moved = judged, True
                    break

    def _store_more(self) -> None:
        """Store the products of one layer more at a time, from the least peak on, and keep layers from there on."""
        chosen = self.least.choice
        selective = tuple(map(self._selective, chosen))
        if selective == chosen:
            return
        for i in range(1, len(chosen) + 1):
            self.judge([*selective[:i], *chosen[i:]])
        self._thin_out(selective)

    def _thin_out(self, choice: Choice) -> None:
        """Keep one layer more at a time, from a choice to the plain step: what budgets in between buy."""
        self._left = _EFFORT
        while choice and self._left > 0:
            fewer = [self.judge(_without(choice, option)) for option in choice]
            best = min(fewer, key=lambda judged: (judged.outcome.peak_bytes, judged.outcome.work))
            choice = best.choice

    def _changed(self, choice: Choice, selective: bool) -> Iterator[Iterable[Option]]:
        """The choices that differ in one thing; for the least peak, no products are worth storing."""
        for option in choice:
            others = _without(choice, option)
            yield others
            for other in self._by_layer[id(option.layer)]:
                if other is not option and (selective or not other.selective):
                    yield [*others, other]
            inside = [o for call in option.calls for o in self._nearest(call)]
            if inside:
                yield [*others, *inside]
            around = next((o for call in option.calls[0].ancestors() for o in self._of(call)), None)
            if around is not None:
                yield [*others, around]
        taken = {id(option.layer) for option in choice}
        rest = [o for o in self._options if id(o.layer) not in taken and not o.selective]
        rest.sort(key=self._inside_bytes, reverse=True)
        for option in rest[:_MOST_ADDED]:
            yield [*choice, option]

    def _selective(self, option: Option) -> Option:
        """The same layer with its products stored, if it has some."""
        return next((o for o in self._by_layer[id(option.layer)] if o.selective), option)

    def _of(self, call: Call) -> list[Option]:
        return self._by_layer.get(id(call.layer), [])

    def _nearest(self, call: Call) -> Iterator[Option]:
        """The options directly inside of a call."""
        for child in call.children:
            whole = [option for option in self._of(child) if option.plan is None and not option.selective]
            yield from whole or self._nearest(child)

    def _inside_bytes(self, option: Option) -> int:
        step = self._simulator.step
        return sum(sweep.kept_inside(step, call) for call in option.calls)


def _without(choice: Choice, left_out: Option) -> list[Option]:
    return [option for option in choice if option is not left_out]
