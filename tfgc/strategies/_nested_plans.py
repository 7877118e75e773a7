"""Plans with nested replays: the least work for every amount of memory, by dynamic programming.

After rotor (Beaumont, Eyraud-Dubois, Herrmann, Joly, Shilova, arXiv:1911.13214), over arbitrary graphs in their fixed
order. A *pass* from position i to j runs forward and then backward. It either keeps the first unit of nodes and
continues after it, or runs a segment forward without saving anything, continues after that, and then makes a pass over
the segment itself. What a pass costs depends on i, j, the memory left, and on which of its inputs are held for others
anyway.

Memory is counted in slots, rounded to the nearest: the front says what a plan should need, `_simulate.simulator` what
it does need. Where all byte counts are multiples of a slot, as in small graphs, the result is exact.
"""

import itertools
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tfgc._core.buffers import Buffers
from tfgc._core.graph import Graph
from tfgc._core.pieces import Piece
from tfgc._simulate.work import node_work
from tfgc.strategies._flat_paths import slot_bytes
from tfgc.strategies._passes import Option, Pass, PassLiveness, Replayed
from tfgc.strategies._segment_costs import SegmentCosts

# A pass takes about half a millisecond, and 5 kB. ResNet50 has 19,000 at 100 positions, InceptionV3 28,000.
_MOST_PASSES = 50_000


class TooManyPasses(Exception):
    """A graph has more passes over segments at these positions than can be looked at."""


class NestedPlans:
    """Plans of a graph that need at most `most` bytes; segments start at given positions, ascending from 0."""

    def __init__(self, graph: Graph, positions: Sequence[int], most: int) -> None:
        self._buffers = b = Buffers.of(graph)
        self._work = node_work(graph)
        self._costs = SegmentCosts(b, self._work)
        self._forward_peak = np.array(b.forward_peak)
        self._forward_work = np.array([work.forward for work in self._work])
        self._ends = [*positions, len(graph)]
        self._next = dict(itertools.pairwise(self._ends))
        self._size = np.array(b.size)
        self._liveness = PassLiveness(b)
        gradients = [count or 0 for count in b.gradient_bytes_at]
        counts = [b.size, gradients, b.pending_gradient_bytes, b.backward_peak, b.forward_peak]
        self._slot = slot_bytes(counts, most)
        self.slots = int(-(-most // self._slot)) + 1
        self._left = np.arange(self.slots)
        self._replayed: dict[tuple[int, int, frozenset[int]], Replayed] = {}
        # A row for each pass: its least work by slots of memory left besides what is held, and how it begins then. With
        # enough slots everything is kept, and more change nothing.
        self._rows: dict[Pass, int] = {}
        self._enough: list[int] = []
        self._least_work = np.full((1024, self.slots), np.inf)
        self._options: list[list[Option]] = []
        self._choices: list[NDArray[np.int16] | None] = []
        self._root = self._solve(Pass(0, len(graph), frozenset(), True))

    def _in_slots(self, count: ArrayLike) -> NDArray[np.int64]:
        return np.rint(np.asarray(count) / self._slot).astype(int)

    def _bytes(self, buffers: Iterable[int]) -> int:
        return sum(self._buffers.size[x] for x in buffers)

    def _solve(self, part: Pass) -> int:
        """The row of a pass."""
        if part not in self._rows:
            if part.start == part.end:
                options, choice, enough = [], None, int(self._in_slots(self._need_of_loss(part)))
                least_work = np.where(self._left >= enough, 0.0, np.inf)
            else:
                options = [self._keep_first(part), *self._replay_first(part)]
                need, added = self._in_slots([(o.need, o.added) for o in options]).T
                enough = max(int(need[0]), int(added[0]) + self._enough[options[0].rest])
                least_work, choice = self._choose(options, need, added, enough + 1)
            row = len(self._options)
            if row == _MOST_PASSES:
                raise TooManyPasses
            if row == len(self._least_work):
                self._least_work = np.concatenate([self._least_work, np.full_like(self._least_work, np.inf)])
            self._least_work[row, : len(least_work)] = least_work
            self._least_work[row, len(least_work) :] = least_work[-1]
            self._options.append(options)
            self._choices.append(choice)
            self._enough.append(enough)
            self._rows[part] = row
        return self._rows[part]

    def _need_of_loss(self, part: Pass) -> int:
        """Bytes that are needed where nothing is left to run: at the end of the first pass comes the loss."""
        b = self._buffers
        return b.loss_bytes + self._bytes(x for x in b.graph_outputs if x not in part.held) if part.first else 0

    def _pending(self, part: Pass) -> int:
        return 0 if part.first else self._buffers.pending_gradient_bytes[part.end]

    def _replay_first(self, part: Pass) -> list[Option]:
        """The options to run a segment forward now, and to make a pass over it at the end."""
        start, end, held, first = part
        # To run what comes last again is of use only if the loss comes between.
        most = min(self._costs.replayable_until[start], end if first else end - 1)
        stops = [stop for stop in self._ends if self._next[start] <= stop <= most]
        if not stops:
            return []
        last_use, live, runs = self._liveness.of(end, first)
        n = stops[-1]
        nodes, runs = np.arange(start, n), runs[start:n]
        alive = live[start:n] + self._forward_peak[start:n]
        for x in held:
            alive -= self._size[x] * (last_use[x] >= nodes)
        alive = np.where(runs, alive + self._pending(part), 0)
        work = np.cumsum(np.where(runs, self._forward_work[start:n], 0)).tolist()
        # By what a segment stores: bytes at each node of the first run, in which that stays, and the most so far.
        runs_by_stored: dict[frozenset[int], tuple[NDArray[np.int64], list[int]]] = {}
        options = []
        for stop in stops:
            ran, segment = stop - start, self._segment(start, stop, held)
            if segment.stored not in runs_by_stored:
                late = alive + sum(self._size[x] * (nodes > last_use[x]) for x in segment.stored)
                runs_by_stored[segment.stored] = late, np.maximum.accumulate(np.where(runs, late, 0)).tolist()
            late, peak = runs_by_stored[segment.stored]
            behind = (held | segment.inputs) & self._liveness.inputs(stop, end, first)
            rest = self._solve(Pass(stop, end, behind, first))
            options.append(Option(peak[ran - 1], segment.bytes, rest, segment.row, work[ran - 1], stop))
        return options

    def _segment(self, start: int, stop: int, held: frozenset[int]) -> Replayed:
        """A segment that is run again."""
        key = start, stop, held
        if key not in self._replayed:
            inputs = self._liveness.inputs(start, stop)
            stored, inside = inputs - held, held & inputs
            row = self._solve(Pass(start, stop, inside, False))
            self._replayed[key] = Replayed(inputs, stored, self._bytes(stored), inside, row)
        return self._replayed[key]

    def _keep_first(self, part: Pass) -> Option:
        """The option to keep the first unit of nodes, and to continue behind it."""
        b, (start, end, held, first) = self._buffers, part
        stop = self._next[start]
        last_use, live, runs = self._liveness.of(end, first)
        saved: dict[int, int] = {}
        need = 0
        work: float = 0
        for i in range(start, stop):
            if runs[i]:
                alive = live[i] - sum(b.size[x] for x in held if last_use[x] >= i)
                alive += sum(size for x, size in saved.items() if last_use[x] < i)
                need = max(need, alive + b.forward_peak[i] + self._pending(part))
                work += self._work[i].forward
            saved.update((x, b.size[x]) for x in b.saved[i] if x not in held)
            gradient_bytes = b.gradient_bytes_at[i]
            if gradient_bytes is not None:
                need = max(need, sum(saved.values()) + gradient_bytes + b.backward_peak[i])
                work += self._work[i].backward
        behind = (held | frozenset(saved)) & self._liveness.inputs(stop, end, first)
        rest = self._solve(Pass(stop, end, behind, first))
        return Option(need, sum(saved.values()), rest, None, work, stop)

    def _choose(
        self, options: Sequence[Option], need: NDArray[np.int64], added: NDArray[np.int64], slots: int
    ) -> tuple[NDArray[np.float64], NDArray[np.int16]]:
        """The least work by slots left, from none to so many, and the option that has it."""
        left = self._left[:slots]
        room = left[None] - added[:, None]
        work = self._least_work[np.array([o.rest for o in options])[:, None], np.maximum(room, 0)]
        work += np.array([o.work for o in options])[:, None]
        if len(options) > 1:
            work[1:] += self._least_work[np.array([o.replay for o in options[1:]])[:, None], left[None]]
        work[(room < 0) | (left[None] < need[:, None])] = np.inf
        choice = work.argmin(axis=0)
        return work[choice, left], choice.astype(np.int16)

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
            option = self._options[row][choice[min(slot, len(choice) - 1)]]
            stop = option.stop
            if option.replay is not None:
                inner = self._pieces(option.replay, start, slot)
                pieces.append((start, stop, inner if len(inner) > 1 else "recompute"))
            else:
                kept_from = pieces.pop()[0] if pieces and pieces[-1][2] == "keep" else start
                pieces.append((kept_from, stop, "keep"))
            start, row, slot = stop, option.rest, slot - int(self._in_slots(option.added))
        return pieces
