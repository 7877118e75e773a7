"""A choice for one limit of bytes: go through the tree of calls from left to right with the bytes held so far."""

from collections.abc import Mapping

from tfgc._calls.options import Option
from tfgc._calls.replays import Piece, Replay, second_runs
from tfgc._calls.simulation import Simulator, lives
from tfgc._calls.step import Call, Step


def under(simulator: Simulator, options: Mapping[int, Option], limit: int) -> list[Option]:
    """Layers to recompute so that what is held, and each replay on top of it, stays under a limit where it can."""
    picked = _Sweep(simulator, options, limit).visit(simulator.step.root, 0, frozenset())[2]
    return list({id(call.layer): options[id(call.layer)] for call in picked}.values())


class _Sweep:
    """One pass through the tree."""

    def __init__(self, simulator: Simulator, options: Mapping[int, Option], limit: int) -> None:
        self._simulator, self._options, self._limit = simulator, options, limit

    def visit(self, call: Call, held: int, buffers: frozenset[int]) -> tuple[int, frozenset[int], list[Call]]:
        """The bytes and buffers held after a call, given those before, and the calls in it to recompute."""
        step, ways = self._simulator.step, []
        option = self._options.get(id(call.layer))
        if option is not None and call in option.calls:
            replay = self._simulator.replay(Piece((call,)))
            added = sum(step.sizes[b] for b in replay.inputs - buffers)
            if held + added + peak_of(step, replay) <= self._limit:
                leaving = sum(step.sizes[b] for b in replay.leaves & step.kept)
                ways.append((held + added + leaving, buffers | replay.inputs, [call]))
        inside = self._inside(call, held, buffers)
        if inside[0] <= self._limit or not ways:
            ways.append(inside)
        return min(ways, key=lambda way: (way[0], len(way[2])))

    def _inside(self, call: Call, held: int, buffers: frozenset[int]) -> tuple[int, frozenset[int], list[Call]]:
        step, picked = self._simulator.step, []
        own = [i for i in step.spans[call] if step.operations[i].owner is call]
        made = [b for i in own for b in step.operations[i].makes if b in step.kept and b not in buffers]
        held += sum(step.sizes[b] for b in made)
        buffers = buffers.union(made)
        for child in call.children:
            if step.spans[child]:
                held, buffers, chosen = self.visit(child, held, buffers)
                picked += chosen
        return held, buffers, picked


def kept_inside(step: Step, call: Call) -> int:
    """Bytes that the backward pass reads of what a call makes."""
    return sum(step.sizes[b] for i in step.spans[call] for b in step.operations[i].makes if b in step.kept)


def peak_of(step: Step, replay: Replay) -> int:
    """The peak of a replay and its backward pass alone, on top of what is held when it starts."""
    turns = (*second_runs(step, replay), *((i, step.operations[i].reads) for i in replay.late))
    runs = [(i, reads, step.operations[i].makes, False) for i, reads in turns]
    made = {b for _, _, makes, _ in runs for b in makes} - step.weight_gradients
    outside = {b for _, reads, makes, _ in runs for b in (*reads, *makes)} - made
    total = peak = 0
    for (_, _, makes, _), overwritten, freed in lives(step, runs, outside):
        total += sum(step.sizes[b] for b in makes if b in made)
        total -= 0 if overwritten is None else step.sizes[overwritten]
        peak = max(peak, total)
        total -= sum(step.sizes[b] for b in freed)
    return peak
