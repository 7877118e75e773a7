"""Plans with nested replays: the least work for every amount of memory, by dynamic programming.

After rotor (Beaumont, Eyraud-Dubois, Herrmann, Joly, Shilova, arXiv:1911.13214), over arbitrary graphs in their fixed
order. A *pass* from position i to j runs forward and then backward. It either keeps the first unit of nodes and
continues after it, or runs a segment forward without saving anything, continues after that, and then makes a pass over
the segment itself. What a pass costs depends on i, j, the memory left, and on which of its inputs are held for others
anyway. A replay that is not split again is another pass than one that may be, if it takes over small results of the
first run.

Memory is counted in slots, rounded to the nearest: the front says what a plan should need, `_simulate.simulator` what
it does need. Where all byte counts are multiples of a slot, as in small graphs, the result is exact.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tfgc._core.buffers import Buffers
from tfgc._core.graph import Graph
from tfgc._core.plan import Piece
from tfgc._simulate.work import node_work
from tfgc.strategies._pass_liveness import PassLiveness
from tfgc.strategies._segment_costs import SegmentCosts


class Pass(NamedTuple):
    """What a pass costs depends on.

    Attributes:
        start, end: Its positions.
        held: Those of its inputs that are held for others.
        first: Whether it is part of the first pass, with the loss at its end, and not of a replay.
        takes_over: Whether it is a replay that is not split again, and takes over small results of the first run.
        selective: Whether that takes over products with weights, too.
    """

    start: int
    end: int
    held: frozenset[int]
    first: bool
    takes_over: bool = False
    selective: bool = False


@dataclasses.dataclass(slots=True)
class Option:
    """One way to begin a pass.

    Attributes:
        need: Most bytes at once meanwhile, on top of what is held.
        added: Bytes that stay until the rest of the pass is done.
        rest: The row of the pass over the rest.
        replay: The row of the pass over the segment itself; None if its nodes are kept.
        work: Work of the nodes that run.
        stop: Position where the rest begins.
        results: Bytes of small results, among those added, that the replay takes over; None if it takes over nothing.
        selective: Whether the replay takes over products with weights, which are among those added.
    """

    need: int
    added: int
    rest: int
    replay: int | None
    work: float
    stop: int
    results: int | None = None
    selective: bool = False


class NestedPlans:
    """Plans of a graph with segments that start at given positions.

    Args:
        graph: The `Graph`.
        positions: Where segments may start, ascending, 0 among them.
        most: Bytes that are more than any plan needs.
        slots: In how many steps memory is counted.
        replays_again: Whether a replay may leave out what it runs and run it once more; else it keeps all that its own
            backward pass needs.
    """

    def __init__(
        self, graph: Graph, positions: Sequence[int], most: int, slots: int = 512, replays_again: bool = True
    ) -> None:
        self._buffers = b = Buffers.of(graph)
        self._replays_again = replays_again
        self._work, _ = node_work(graph)
        self._takes_over = any((*b.result_bytes, *b.selective_bytes)) or any(
            work.replay != work.forward for work in self._work
        )
        self._costs = SegmentCosts(b, [work.forward for work in self._work])
        self._forward_peak = np.array(self._costs.forward_peak)
        self._ends = [*positions, len(graph)]
        self._next = dict(itertools.pairwise(self._ends))
        self._size = np.array(b.size)
        self._liveness = PassLiveness(b)
        self._slot = self._slot_bytes(most, slots)
        self.slots = int(-(-most // self._slot)) + 1
        self._left = np.arange(self.slots)
        # A row for each pass: its least work by slots of memory left besides what is held, and how it begins then.
        self._rows: dict[Pass, int] = {}
        self._least_work = np.full((1024, self.slots), np.inf)
        self._options: list[list[Option]] = []
        self._choices: list[NDArray[np.int64] | None] = []
        self._root = self._solve(Pass(0, len(graph), frozenset(), True))

    def _slot_bytes(self, most: int, slots: int) -> float:
        b = self._buffers
        counts = [
            *b.size,
            *b.internal_bytes,
            *b.selective_bytes,
            *(g or 0 for g in b.gradient_bytes_at),
            *b.pending_gradient_bytes,
        ]
        counts += [*self._costs.saving_peak, *self._costs.selective_peak, *self._costs.forward_peak, *b.backward_peak]
        common = int(np.gcd.reduce(np.array(counts, np.int64)))
        return common if common and most // common <= slots else most / slots

    def _in_slots(self, count: ArrayLike) -> NDArray[np.int64]:
        return np.rint(np.asarray(count) / self._slot).astype(int)

    def _bytes(self, buffers: Iterable[int]) -> int:
        return sum(self._buffers.size[x] for x in buffers)

    def _solve(self, part: Pass) -> int:
        """The row of a pass."""
        if part not in self._rows:
            if part.start == part.end:
                options, least_work, choice = [], self._finish(part), None
            else:
                options = self._options_of(part)
                least_work, choice = self._choose(options)
            row = len(self._options)
            if row == len(self._least_work):
                self._least_work = np.concatenate([self._least_work, np.full_like(self._least_work, np.inf)])
            self._least_work[row] = least_work
            self._options.append(options)
            self._choices.append(choice)
            self._rows[part] = row
        return self._rows[part]

    def _finish(self, part: Pass) -> NDArray[np.float64]:
        """Work by slots left where nothing is left to run; at the end of the first pass comes the loss."""
        b, need = self._buffers, 0
        if part.first:
            need = b.loss_bytes + self._bytes(x for x in b.graph_outputs if x not in part.held)
        return np.where(self._left >= self._in_slots(need), 0.0, np.inf)

    def _pending(self, part: Pass) -> int:
        return 0 if part.first else self._buffers.pending_gradient_bytes[part.end]

    def _options_of(self, part: Pass) -> list[Option]:
        """The options to begin a pass; the first one keeps the first unit of nodes."""
        return [self._keep_first(part), *self._replay_first(part)]

    def _replay_first(self, part: Pass) -> list[Option]:
        """The options to run a segment forward now, and to make a pass over it at the end."""
        start, end, held, first = part[:4]
        if part.takes_over or not (first or self._replays_again):
            return []
        # To run what comes last again is of use only if the loss comes between.
        most = min(self._costs.replayable_until[start], end if first else end - 1)
        stops = [stop for stop in self._ends if self._next[start] <= stop <= most]
        if not stops:
            return []
        last_use, live, runs = self._liveness.of(end, first)
        nodes = np.arange(start, stops[-1])
        alive = live[nodes] + self._forward_peak[nodes]
        for x in held:
            alive -= self._size[x] * (last_use[x] >= nodes)
        alive = np.where(runs[nodes], alive + self._pending(part), 0)
        peak = np.maximum.accumulate(alive)
        forward_work = [work.forward for work in self._work[start : stops[-1]]]
        work = np.cumsum(np.where(runs[nodes], forward_work, 0))
        results = np.cumsum([0, *self._buffers.result_bytes[start : stops[-1]]])
        options = []
        for stop in stops:
            inputs, ran = self._liveness.inputs(start, stop), stop - start
            new = inputs - held
            late, need = alive[:ran], int(peak[ran - 1])
            staying = [x for x in new if last_use[x] < stop - 1]
            if staying:
                late = alive[:ran] + sum(self._size[x] * (nodes[:ran] > last_use[x]) for x in staying)
                need = int(np.where(runs[nodes[:ran]], late, 0).max())
            behind = (held | inputs) & self._liveness.inputs(stop, end, first)
            rest = self._solve(Pass(stop, end, behind, first))
            added, inside = self._bytes(new), held & inputs
            if first and self._takes_over:
                flat, stored = self._solve(Pass(start, stop, inside, False, True)), int(results[ran])
                most = int((late + results[:ran]).max())
                options.append(Option(most, added + stored, rest, flat, work[ran - 1], stop, stored))
                products = self._buffers.selective_before[start : stop + 1]
                if products[-1] > products[0]:
                    most = int((late + results[:ran] + np.array(products[:-1]) - products[0]).max())
                    replay = self._solve(Pass(start, stop, inside, False, takes_over=True, selective=True))
                    staying_bytes = added + stored + products[-1] - products[0]
                    options.append(Option(most, staying_bytes, rest, replay, work[ran - 1], stop, stored, True))
            if self._replays_again or not self._takes_over:
                replay = self._solve(Pass(start, stop, inside, False))
                options.append(Option(need, added, rest, replay, work[ran - 1], stop))
        return options

    def _keep_first(self, part: Pass) -> Option:
        """The option to keep the first unit of nodes, and to continue behind it."""
        b, (start, end, held, first, takes_over, selective) = self._buffers, part
        stop, peaks = self._next[start], self._costs.selective_peak if selective else self._costs.saving_peak
        last_use, live, runs = self._liveness.of(end, first)
        saved: dict[int, int] = {}
        internal = need = 0
        work: float = 0
        for i in range(start, stop):
            if runs[i]:
                alive = live[i] - sum(b.size[x] for x in held if last_use[x] >= i) + internal
                alive += sum(size for x, size in saved.items() if last_use[x] < i)
                alive += (b.selective_before[end] - b.selective_before[i]) * selective
                need = max(need, alive + peaks[i] + self._pending(part))
                ran = self._work[i]
                work += ran.selective if selective else ran.replay if takes_over else ran.forward
            saved.update((x, b.size[x]) for x in b.saved[i] if x not in held)
            internal += b.internal_bytes[i]
            gradient_bytes = b.gradient_bytes_at[i]
            if gradient_bytes is not None:
                need = max(need, sum(saved.values()) + internal + gradient_bytes + b.backward_peak[i])
                work += self._work[i].backward
        behind = (held | frozenset(saved)) & self._liveness.inputs(stop, end, first)
        rest = self._solve(Pass(stop, end, behind, first, takes_over, selective))
        return Option(need, sum(saved.values()) + internal, rest, None, work, stop)

    def _choose(self, options: Sequence[Option]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """The least work by slots left, and the option that has it."""
        need, added = self._in_slots([o.need for o in options]), self._in_slots([o.added for o in options])
        room = self._left[None] - added[:, None]
        work = self._least_work[np.array([o.rest for o in options])[:, None], np.maximum(room, 0)]
        work += np.array([o.work for o in options])[:, None]
        if len(options) > 1:
            beside = self._left[None] - self._in_slots([o.results or 0 for o in options[1:]])[:, None]
            rows = np.array([o.replay for o in options[1:]])[:, None]
            work[1:] += np.where(beside < 0, np.inf, self._least_work[rows, np.maximum(beside, 0)])
        work[(room < 0) | (self._left[None] < need[:, None])] = np.inf
        choice = work.argmin(axis=0)
        return work[choice, self._left], choice

    def front(self) -> list[int]:
        """Slots of memory at which the least work falls, fewest first."""
        work = self._least_work[self._root]
        return [slot for slot in range(self.slots) if work[slot] < (work[slot - 1] if slot else np.inf)]

    def pieces(self, slot: int) -> list[Piece]:
        """The plan for an amount of memory, as pieces for `Plan.from_pieces`."""
        return self._pieces(self._root, 0, slot)

    def _pieces(self, row: int, start: int, slot: int) -> list[Piece]:
        pieces: list[Piece] = []
        while (choice := self._choices[row]) is not None:
            option = self._options[row][choice[slot]]
            stop = option.stop
            if option.replay is not None:
                inner = self._pieces(option.replay, start, slot - int(self._in_slots(option.results or 0)))
                is_split = len(inner) > 1 or (self._takes_over and option.results is None)
                how = "selective" if option.selective else "recompute"
                pieces.append((start, stop, inner if is_split else how))
            elif pieces and pieces[-1][2] == "keep":
                pieces.append((pieces.pop()[0], stop, "keep"))
            else:
                pieces.append((start, stop, "keep"))
            start, row, slot = stop, option.rest, slot - int(self._in_slots(option.added))
        return pieces
