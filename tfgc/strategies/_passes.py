"""The passes over parts of a graph, and the ways to begin each with what that needs.

A *pass* from position i to j runs forward and then backward. It either keeps the first unit of nodes and goes on behind
it, or runs a segment forward without saving anything, goes on behind that, and then runs the segment again: with all
of it kept, or, nested, by a pass over it. What a pass costs depends on i, j, the memory left, and on which of its
inputs are held for others anyway. All figures are those that `_simulate.simulator` counts event by event, but for what
waits on the host: that is taken to be there when its segment has run, and to come back during the backward pass of the
segment behind it, for which no other copy waits.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from tfgc._core.buffers import Buffers
from tfgc._core.graph import Graph
from tfgc.strategies._host_memory import HostMemory
from tfgc.strategies._liveness import KeptReplay, Liveness


class Pass(NamedTuple):
    """All that the cost of a pass depends on."""

    start: int
    end: int
    held: frozenset[int]  # buffers made before it that are held for others, and of use in it
    first: bool  # whether it is part of the first pass, with the loss at its end, and not of a replay
    fetched: int = 0  # bytes that come back from the host while its first segment runs backward
    behind_kept: bool = False  # whether that segment is kept, and nodes of it lie before the pass


@dataclasses.dataclass(slots=True)
class Option:
    """One way to begin a pass. Bytes are on top of what is held."""

    stop: int  # position where the rest begins
    need: int  # most bytes at once meanwhile
    added: int  # bytes that stay until the rest of the pass is done
    work: float  # work of what runs again
    rest: Pass | None  # behind it; None at the end
    replay: Pass | None = None  # over the segment itself, where that may be nested
    kept: bool = False  # whether its nodes are kept
    host: int = 0  # bytes that it stores on the host


class Options:
    """The ways to begin the passes over a graph.

    Args:
        graph: The graph.
        places: Positions where segments may start, ascending from 0.
        nested: Whether parts of a segment may run again in its replay.
        host: Where inputs of segments may be stored on the host.
        hidden: Whether no replay may wait for what comes back from there.
    """

    def __init__(
        self,
        graph: Graph,
        places: Sequence[int],
        nested: bool = False,
        host: HostMemory | None = None,
        hidden: bool = False,
    ) -> None:
        self._buffers = b = Buffers.of(graph)
        self._nested, self._host, self._hidden = nested, host, hidden
        self._ends = [*places, len(graph)]
        self._next = dict(itertools.pairwise(self._ends))
        self._liveness = Liveness(b)
        works = np.array([(cost.flops, cost.backward_flops) for cost in graph.costs], float)
        self._forward, self._backward = np.concatenate([np.zeros((1, 2)), np.cumsum(works, axis=0)]).T
        self._work = works[:, 0]
        # Of plans of equal work the one that stores least on the host is taken.
        self._host_work = 1e-9 * self._forward[-1] / max(sum(b.size), 1)
        self._per_byte = 0.0 if host is None or host.link is None else 1 / host.link
        self._until = _runs_until([cost.obstacle is None for cost in graph.costs])

    def of(self, part: Pass, room: float) -> list[Option]:
        """The options of a pass that need no more than some bytes."""
        found = [*self._recompute(part, room), self._keep(part)] if part.start < part.end else [self._end(part)]
        found = [o for o in found if o.need <= room]
        if part.behind_kept or not part.fetched:
            return found
        waits = [self._wait(part, option) for option in found]
        for option, wait in zip(found, waits):
            option.work += wait
        return [option for option, wait in zip(found, waits) if not (wait and self._hidden)]

    def _end(self, part: Pass) -> Option:
        """Nothing is left to run: at the end of the first pass comes the loss."""
        b, need = self._buffers, 0
        if part.first:
            need = b.loss_bytes + self._bytes(set(b.graph_outputs) - part.held) + part.fetched * (not part.behind_kept)
        return Option(part.end, need, 0, 0.0, None)

    def _wait(self, part: Pass, option: Option) -> float:
        """Work for which the replay of the segment before a pass waits, until its inputs are back."""
        hides = option.work + self._backward[option.stop] - self._backward[part.start]
        return max(part.fetched * self._per_byte - hides, 0.0)

    def _bytes(self, buffers: Iterable[int]) -> int:
        return sum(self._buffers.size[x] for x in buffers)

    def _rest(self, part: Pass, stop: int, held: frozenset[int], fetched: int = 0, behind_kept: bool = False) -> Pass:
        held &= self._liveness.inputs(stop, part.end, part.first)
        return Pass(stop, part.end, held, part.first, fetched, behind_kept)

    def _pending(self, part: Pass) -> int:
        return 0 if part.first else self._buffers.pending_gradient_bytes[part.end]

    def _keep(self, part: Pass) -> Option:
        """The option to keep the first unit of nodes."""
        b, (start, end, held, first, fetched, _) = self._buffers, part
        stop = self._next[start]
        last_use, live, runs = self._liveness.of(end, first)
        saved: dict[int, int] = {}
        need = 0
        work: float = 0
        for i in range(start, stop):
            if runs[i]:
                alive = int(live[i]) - sum(b.size[x] for x in held if last_use[x] >= i)
                alive += sum(size for x, size in saved.items() if last_use[x] < i)
                need = max(need, alive + b.forward_peak[i] + self._pending(part))
                work += 0 if first else self._work[i]
            saved.update((x, b.size[x]) for x in b.saved[i] if x not in held)
            gradient_bytes = b.gradient_bytes_at[i]
            if gradient_bytes is not None:
                need = max(need, sum(saved.values()) + gradient_bytes + b.backward_peak[i] + fetched)
        rest = self._rest(part, stop, held.union(saved), fetched, behind_kept=fetched > 0)
        return Option(stop, need, sum(saved.values()), work, rest, kept=True)

    def _recompute(self, part: Pass, room: float) -> Iterator[Option]:
        """The options to run a segment forward now, and again at the end."""
        b, (start, end, held, first, fetched, behind_kept) = self._buffers, part
        # To run what comes last again is of use only if the loss comes between.
        most = min(self._until[start], end if first else end - 1)
        stops = [stop for stop in self._ends if self._next[start] <= stop <= most]
        if not stops:
            return
        last_use, live, runs = self._liveness.of(end, first)
        n = stops[-1]
        nodes, runs = np.arange(start, n), runs[start:n]
        alive = live[start:n] + self._liveness.forward_peak[start:n] + self._pending(part)
        for x in held:
            alive -= b.size[x] * (last_use[x] >= nodes)
        work = np.cumsum(np.where(runs, 0 if first else self._work[start:n], 0.0))
        # By what a segment stores: the most bytes so far in the first run, in which that stays.
        peaks: dict[frozenset[int], list[int]] = {}
        again = None if self._nested else KeptReplay(self._liveness, start, held)
        for stop in stops:
            inputs = self._liveness.inputs(start, stop)
            stored = inputs - held
            if stored not in peaks:
                late = alive + sum(b.size[x] * (nodes > last_use[x]) for x in stored)
                peaks[stored] = np.maximum.accumulate(np.where(runs, late, 0)).tolist()
            option = Option(
                stop, peaks[stored][stop - start - 1], self._bytes(stored), float(work[stop - start - 1]),
                self._rest(part, stop, held | inputs),
            )  # fmt: skip
            if option.need > room:
                return  # a longer one needs as much
            if again is None:
                option.replay = Pass(start, stop, held & inputs, False)
            else:
                need, least, nodes_again = again.up_to(stop)
                if least > room:
                    return
                option.need = max(option.need, need + (0 if behind_kept else fetched))
                option.work += float(self._work[start:stop][nodes_again].sum())
            yield option
            if self._host is not None and self._is_copied(option.added, start, stop):
                rest = self._rest(part, stop, held, fetched=option.added)
                more = option.work + option.added * self._host_work
                yield dataclasses.replace(option, added=0, host=option.added, rest=rest, work=more)

    def _is_copied(self, count: int, start: int, stop: int) -> bool:
        """Whether the copy of so many bytes to the host, if there are any, is done when a segment has run."""
        return count > 0 and count * self._per_byte <= self._forward[stop] - self._forward[start]


def _runs_until(flags: Sequence[bool]) -> list[int]:
    """For each position where the run of true flags from there on ends."""
    until = [len(flags)] * (len(flags) + 1)
    for i in range(len(flags) - 1, -1, -1):
        until[i] = until[i + 1] if flags[i] else i
    return until
