"""The buffers of the blocks before one gradient call, as arrays: who makes, reads, copies and differentiates them.

The gradients are the clock, in the order in which they run in some step. A moment begins where the first of them needs
a buffer, and behind where the last one did.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tfgc._planning.blocks import Blocks
from tfgc._rewrite.liveness import IN_PLACE, timeline
from tfgc._step.step import Step, Tensor

Ints = NDArray[np.int64]
# How many blocks a short skip connection spans, of all and at least.
_SHORT, _FEW = 0.1, 20


@dataclasses.dataclass(frozen=True)
class Skips:
    """Short skip connections, such as that around a residual block: at each place the one that spans it, or none.

    The block behind it may not be copied, so that its buffer is stored only if the plan says so.

    Attributes:
        at: A number for each; -1 for none.
        bytes: What its buffer takes.
        made: The block that makes it.
        first_read: The first block that reads it: if that is copied in another segment than the maker, it is stored.
    """

    at: Ints
    bytes: Ints
    made: Ints
    first_read: Ints


class BlockBuffers:
    """Buffers in the order in which they are made.

    Attributes:
        size, made: Bytes of each, and the block that makes it.
        last_read: The last block that reads each.
        saved: Whether gradients read it.
        first_used, last_used: The moments when the first and the last of them do.
        fixed: Whether no copy makes it again.
        copied_readers: The blocks that read it and may be copied.
        storing: Those of them that have it stored; not the one behind a short skip connection.
        last_storing: The last of these; -1 if there is none.
        skips: The short skip connections at places.
        skipping: For the buffer of each of them the block behind.
        gradients: Bytes of gradients at each moment.
        before: The same just before it.
        transient: For each block bytes that it reads and makes and no gradient reads.
    """

    def __init__(self, blocks: Blocks, places: Sequence[int], clock: Step) -> None:
        step, n = blocks.step, len(blocks.numbers)
        self._tensors = [b for i in blocks.numbers for b in step.makes[i]]
        self.size = np.array([step.size(b) for b in self._tensors])
        self.made = np.array([blocks.place[b[0]] for b in self._tensors])
        readers = [sorted(blocks.place[j] for j in step.readers.get(b, ()) if j in blocks.place) for b in self._tensors]
        self.fixed = np.array([step.ops[b[0]].is_stateful for b in self._tensors])
        self.last_read = np.array([max(each, default=k) for each, k in zip(readers, self.made)])
        self._read_clock(blocks, clock)
        self.saved = self.first_used < len(self.gradients)
        self.transient = np.array([self._in_passing(blocks, i) for i in blocks.numbers])
        leads = np.zeros(n, bool)  # whether gradients read something that is made of a block
        self.copied_readers: list[list[int]] = [[]] * len(self._tensors)
        for x in reversed(range(len(self._tensors))):
            self.copied_readers[x] = [j for j in readers[x] if leads[j]]
            leads[self.made[x]] |= self.saved[x] or bool(self.copied_readers[x])
        self.skipping: dict[int, int] = {}
        self.skips = self._find_skips(np.array(places), n)
        self.storing = [[j for j in each if self.skipping.get(x) != j] for x, each in enumerate(self.copied_readers)]
        self.last_storing = np.array([each[-1] if each else -1 for each in self.storing])
        self.last_storing[self.fixed] = n

    def _find_skips(self, places: Ints, n: int) -> Skips:
        """The largest first, and none that overlaps with one found before."""
        at = np.full(len(places), -1)
        long = max(_SHORT * n, _FEW)
        for x in np.argsort(-self.size, kind="stable").tolist():
            readers = self.copied_readers[x]
            if len(readers) > 1 and readers[-1] - self.made[x] <= long and not self.fixed[x]:
                spanned = (places > self.made[x]) & (places <= readers[-1])
                if (places[spanned] > readers[0]).any() and (at[spanned] < 0).all():
                    at[spanned] = x
                    self.skipping[x] = readers[-1]
        first = np.array([each[0] if each else -1 for each in self.copied_readers])
        return Skips(at, self.size[at], self.made[at], first[at])

    def _read_clock(self, blocks: Blocks, clock: Step) -> None:
        """Bytes of gradients by moment, and when each buffer is read by the first and last of them."""
        gradients = blocks.gradients
        alive = dict(zip(clock.order, timeline(clock, {i for i in gradients if clock.ops[i].is_gradient})))
        order = [i for i in clock.order if i in gradients]
        first: dict[Tensor, int] = {}
        last: dict[Tensor, int] = {}
        for k, i in enumerate(order):
            for b in blocks.step.reads[i]:
                first.setdefault(b, k)
                last[b] = k
        # Moments begin where the first gradient needs a buffer, and behind where the last one did.
        read = [b for b in self._tensors if b in first]
        begins = sorted({0, *(first[b] for b in read), *(k + 1 for b in read for k in (first[b], last[b]))})
        moment = np.searchsorted(begins, np.arange(len(order)), side="right") - 1
        self.gradients = np.zeros(len(begins), np.int64)
        np.maximum.at(self.gradients, moment, [alive[i] for i in order])
        self.first_used = np.array([moment[first[b]] if b in first else len(begins) for b in self._tensors])
        self.last_used = np.array([moment[last[b]] if b in last else -1 for b in self._tensors])
        self.before = np.minimum(self.gradients, np.roll(self.gradients, 1))  # before each moment

    @staticmethod
    def _in_passing(blocks: Blocks, number: int) -> int:
        """Bytes of what an operation reads and makes that no gradient reads."""
        step = blocks.step
        read, made = (
            sum(step.size(b) for b in found if b[0] in blocks.place and b not in blocks.saved)
            for found in (step.reads[number], step.makes[number])
        )
        return max(read, made) if step.ops[number].type in IN_PLACE else read + made
