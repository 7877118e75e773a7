"""The peak and the work of a step in which some pieces are recomputed.

A buffer is alive from the operation that makes it to the last one that reads it; the gradients of weights stay until
the step ends.
"""

import dataclasses
import statistics
from collections.abc import Iterable, Iterator, Sequence, Set
from typing import TypeAlias

from tfgc._calls.order import Orders, Run
from tfgc._calls.replays import Piece
from tfgc._calls.step import Call, Step
from tfgc._core.segments import Phase
from tfgc._simulate import chunk_peaks, xla_heap
from tfgc._simulate.requests import Requests

_STEPS = 3


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a step needs: most bytes at once, those of the batch left out, and what runs at that moment."""

    peak_bytes: int
    owner: Call  # of the operation at the peak
    phase: Phase
    work: int  # flops of the replays


class Simulator:
    """Simulates one step with any set of recomputed pieces."""

    def __init__(self, step: Step) -> None:
        self.step = step
        self._orders = Orders(step)
        self.replay = self._orders.replay

    def outcome(self, pieces: Sequence[Piece]) -> Outcome:
        """What a step needs in which these pieces, none inside of another, are recomputed."""
        peak, at_peak = -1, None
        for run, count in self._course(pieces, self.step.sizes):
            if count > peak:
                peak, at_peak = count, run
        assert at_peak is not None  # a step runs something
        operation = self.step.operations[at_peak[0]]
        phase = "backward" if operation.late else "replay" if at_peak[3] else "forward"
        return Outcome(peak, operation.owner, phase, sum(self.replay(piece).work for piece in pieces))

    def activation_bytes(self, pieces: Sequence[Piece]) -> int:
        """The peak without the gradients of weights."""
        left_out = self.step.weight_gradients
        sizes = [0 if buffer in left_out else size for buffer, size in enumerate(self.step.sizes)]
        return max(count for _, count in self._course(pieces, sizes))

    def timeline(self, pieces: Sequence[Piece]) -> Iterator[tuple[int, int, Call]]:
        """The work so far, the bytes and the call of each operation."""
        work = 0
        for run, count in self._course(pieces, self.step.sizes):
            operation = self.step.operations[run[0]]
            work += operation.work
            yield work, count, operation.owner

    def _course(self, pieces: Sequence[Piece], sizes: Sequence[int]) -> Iterator[tuple[Run, int]]:
        """Each run with the bytes that are there while it runs."""
        total, count = 0, len(sizes)
        without = self._without_workspace(pieces)
        for run, overwritten, freed in self._lives(pieces):
            total += sum([sizes[b % count] for b in run[2]])
            total += 0 if run[0] in without else self.step.operations[run[0]].workspace
            if overwritten is not None:
                total -= sizes[overwritten % count]
            yield run, total + self.step.operations[run[0]].temporary
            total -= sum([sizes[b % count] for b in freed])

    def _without_workspace(self, pieces: Sequence[Piece]) -> set[int]:
        """The operations that under XLA write nothing besides their results, since they run again."""
        return {i for piece in pieces for i in self.replay(piece).early} if self.step.xla else set()

    def allocated_bytes(self, pieces: Sequence[Piece], there: Iterable[int], most: bool = False) -> int:
        """What TensorFlow's allocator should report as the peak, the median over some steps; `there` is held before.

        Or the `most` that it may need, above what is `there` as it was asked for. Under XLA the heap that it lays out.
        """
        requests = self._requests(pieces, there)
        if self.step.xla:
            return xla_heap.heap_bytes(requests)
        if most:
            return max(chunk_peaks.from_states(requests))
        return int(statistics.median(peak for _, peak in chunk_peaks.in_a_row(requests, _STEPS)))

    def _requests(self, pieces: Sequence[Piece], there: Iterable[int]) -> Requests:
        """What a step asks an allocator for."""
        requests = Requests(there)
        sizes, count, without = self.step.sizes, len(self.step.sizes), self._without_workspace(pieces)
        at: dict[int, int | None] = {}
        spaces: list[int | None] = []
        for (i, _, makes, _), overwritten, freed in self._lives(pieces):
            for buffer in makes:
                size, taken = sizes[buffer % count], None
                if overwritten is not None and size == sizes[overwritten % count]:
                    taken = at.pop(overwritten, None)
                at[buffer] = requests.allocate(size) if taken is None else taken
            spaces.append(requests.allocate(0 if i in without else self.step.operations[i].workspace))
            requests.free(requests.allocate(self.step.operations[i].temporary))
            for buffer in freed:
                requests.free(at.pop(buffer))
        for number in (*at.values(), *spaces):
            requests.free(number)
        return requests

    def _lives(self, pieces: Sequence[Piece]) -> Iterator["Life"]:
        return lives(self.step, self._orders.runs(pieces), self.step.weight_gradients | self.step.batch)


# A run, the buffer that it writes its result over, or None, and the buffers that go after it.
Life: TypeAlias = tuple[Run, int | None, list[int]]


def lives(step: Step, runs: Sequence[Run], stays: Set[int]) -> Iterator[Life]:
    """Each of these runs as a `Life`; what `stays` is never freed."""
    operations, sizes, count = step.operations, step.sizes, len(step.sizes)
    last: dict[int, int] = {}
    for position, (_, reads, makes, _) in enumerate(runs):
        for buffer in makes:
            last[buffer] = position
        for buffer in reads:
            last[buffer] = position
    last.update(dict.fromkeys(stays, len(runs)))
    for position, run in enumerate(runs):
        i, reads, makes, _ = run
        freed = [b for b in dict.fromkeys((*reads, *makes)) if last[b] == position]
        overwritten = None
        if operations[i].in_place and makes:
            size = max(sizes[b % count] for b in makes)
            overwritten = next((b for b in freed if b not in makes and sizes[b % count] == size), None)
            if overwritten is not None:
                freed.remove(overwritten)
        yield run, overwritten, freed
