"""The order in which a step with recomputed pieces runs.

The forward pass runs in the order of the step. In the backward pass a recomputed piece runs again as soon as all its
upstream gradients are there, and all gradients of the piece that ran again before it: replays do not overlap. The last
first run is replayed first (`tfgc._framework.replay_order`); under XLA, what has its upstream gradients first.

Buffers of a replay have numbers of their own: those of the first run, plus the number of all buffers times one more
than the number of the piece.
"""

import heapq
import itertools
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from tfgc._calls.replays import Piece, Replay, replay, second_runs
from tfgc._calls.step import Step
from tfgc._framework.operation_order import reached

# One run of an operation: its number, the buffers that it reads and makes, and whether it is a second run.
Run: TypeAlias = tuple[int, Sequence[int], Sequence[int], bool]


class Orders:
    """Puts the operations of one step into order, for any pieces."""

    def __init__(self, step: Step) -> None:
        self._step = step
        self._pieces: dict[Piece, _Numbered] = {}
        self._after: dict[int, list[int]] = {}
        self._waiting: dict[int, int] = {}
        late = [operation.late for operation in step.operations]
        # Whether operations are late, and all of them up to those that are not, or are
        self._stretches = [(of, list(group)) for of, group in itertools.groupby(range(len(late)), late.__getitem__)]
        for stretch in (these for is_late, these in self._stretches if is_late):
            here = set(stretch)
            for i in stretch:
                before = [other for other in step.operations[i].waits if other in here]
                self._waiting[i] = len(before)
                for other in before:
                    self._after.setdefault(other, []).append(i)

    def replay(self, piece: Piece) -> Replay:
        """The second run of a piece, worked out once."""
        return self._numbered(piece).replay

    def runs(self, pieces: Sequence[Piece]) -> list[Run]:
        """All operations in order, those that run again included."""
        numbered = [self._numbered(piece) for piece in pieces]
        for_all = {buffer: copy for piece in numbered for buffer, copy in piece.for_all.items()}
        at = {i: k for k, piece in enumerate(numbered) for i in piece.replay.late}
        packs = {i: bits for piece in numbered for i, bits in piece.replay.unpacked.items()}
        operations = self._step.operations
        made: list[Run] = []
        begun: set[int] = set()
        for is_late, stretch in self._stretches:
            if not is_late:
                made += [(i, operations[i].reads, _made(operations[i].makes, packs.get(i)), False) for i in stretch]
                continue
            for turn in self._sorted(stretch, numbered, at):
                if turn < 0 and turn not in begun:
                    begun.add(turn)
                    made.extend(numbered[-1 - turn].runs)
                elif turn >= 0:
                    own = numbered[at[turn]].for_own if turn in at else {}
                    reads = [own.get(buffer) or for_all.get(buffer, buffer) for buffer in operations[turn].reads]
                    made.append((turn, reads, operations[turn].makes, False))
        return made

    def _numbered(self, piece: Piece) -> "_Numbered":
        if piece not in self._pieces:
            self._pieces[piece] = _Numbered(self._step, piece, len(self._step.sizes) * (len(self._pieces) + 1))
        return self._pieces[piece]

    def _sorted(self, stretch: Sequence[int], pieces: Sequence["_Numbered"], at: dict[int, int]) -> Iterator[int]:
        """Late operations and, as -1 - k, the start of the k-th replay, in an order that obeys what each waits for."""
        here = set(stretch)
        left = {i: self._waiting[i] + (i in at) for i in stretch}
        starts = {
            k: max((i for i in pieces[k].replay.upstream if i in here), default=stretch[0] - 1) + 0.5
            for k in dict.fromkeys(at[i] for i in stretch if i in at)
        }
        also: dict[int, list[int]] = {}
        before: list[int] = []
        latest = -1.0
        for k in sorted(
            starts, key=lambda k: (starts[k], k) if self._step.xla else (-min(pieces[k].replay.early, default=0), k)
        ):
            also[-1 - k] = [i for i in pieces[k].replay.late if i in here]
            if starts[k] < latest:  # traced before that one
                behind = reached([-1 - k], lambda turn: (*self._after.get(turn, ()), *also.get(turn, ())))
                before = [i for i in before if i not in behind]
            waits = {*before, *(i for i in pieces[k].replay.upstream if i in here)}
            left[-1 - k] = len(waits)
            for i in waits:
                also.setdefault(i, []).append(-1 - k)
            before, latest = also[-1 - k], starts[k]
        keys = {i: float(i) for i in stretch} | {-1 - k: key for k, key in starts.items()}
        ready = [(keys[i], i) for i, count in left.items() if not count]
        heapq.heapify(ready)
        while ready:
            _, turn = heapq.heappop(ready)
            yield turn
            for other in (*self._after.get(turn, ()), *also.get(turn, ())):
                left[other] -= 1
                if not left[other]:
                    heapq.heappush(ready, (keys[other], other))
        # What waits for itself, through a piece whose backward pass feeds its own upstream, runs as it was traced.
        yield from sorted((i for i, count in left.items() if count > 0), key=lambda i: keys[i])


def _made(makes: tuple[int, ...], bits: int | None) -> tuple[int, ...]:
    return makes if bits is None else (*makes, bits)


class _Numbered:
    """A piece, with the numbers of the buffers of its second run."""

    def __init__(self, step: Step, piece: Piece, offset: int) -> None:
        self.replay = replay(step, piece)
        made = {b for i in self.replay.runs for b in step.operations[i].makes}
        self.runs: list[Run] = []
        for i, first_reads in second_runs(step, self.replay):
            reads = [b + offset if b in made else b for b in first_reads]
            self.runs.append((i, reads, [b + offset for b in step.operations[i].makes], True))
        # Which copies its own backward pass, and all others, read in place of buffers of the first run.
        self.for_own = {b: b + offset for b in self.replay.leaves}
        self.for_all = {b: b + offset for b in self.replay.remade - self.replay.leaves}
