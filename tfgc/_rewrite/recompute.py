"""Recompute what lies between cuts: Step -> Step.

What lies between two cuts is a segment. What gradients read of it is dropped after its last forward use, and copied for
each gradient call that reads it; what these copies read of earlier segments is stored. A segment may be kept instead;
what lies between the last cut before a call and the call always is. A copy is a pure operation on the same inputs, so
that it gives the same bits.

A copied segment may be cut again (a nested replay): what lies between its inner cuts is copied once more.

Never copied: stateful operations, what an outermost gradient call made, and small buffers, which are shared.

Known weakness: all gradient calls of a step share its cuts, and may store more than each of them needs.
"""

import bisect
import dataclasses
import functools
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence

from tfgc._rewrite import on_host
from tfgc._step.step import NOT_OF_THE_STEP, VIEWS, Op, Step, Tensor


@dataclasses.dataclass(frozen=True)
class Cut:
    """A place in the forward part of a step.

    Attributes:
        behind: The number of the traced operation that it lies behind.
        keep: Whether the segment that ends here is kept.
        inside: Where the copy of that segment is cut again.
        offload: Whether what that segment reads last waits for gradients on the host (`on_host`).
    """

    behind: int
    keep: bool = False
    inside: tuple["Cut", ...] = ()
    offload: bool = False


def recomputed(step: Step, cuts: Iterable[Cut], free: Collection[int] = ()) -> Step:
    """The operations of `step` with what lies between cuts copied for each gradient call, in no order yet.

    Copies stand at the end of the order. What `free` operations make is not stored, but made by all copies of readers.
    """
    rewriter = _Rewriter(step, free)
    cuts = sorted(cuts, key=lambda cut: step.at.get(cut.behind, -1))
    for call in range(1, len(step.calls) + 1):
        rewriter.serve(call, cuts)
    ops = rewriter.ops
    made = dataclasses.replace(step, ops=ops, order=(*step.order, *(i for i in ops if i not in step.at)))
    return on_host.stored(made, {cut.behind: cut.offload for cut in cuts})


class _Rewriter:
    """The operations as they are rewritten, one gradient call after the other."""

    def __init__(self, step: Step, free: Collection[int]) -> None:
        self.step, self.free, self.next = step, free, max(step.ops, default=-1) + 1
        self.ops: dict[int, Op] = dict(step.ops)

    def serve(self, call: int, cuts: Sequence[Cut]) -> None:
        """Let what a call reads of the segments before it be copies."""
        step, ops = self.step, self.ops
        before = self._made_before(call)
        begun: dict[int, int] = {}  # where what follows each earlier outermost call begins: nothing is kept across it
        for position, i in enumerate(before):
            begun.setdefault(ops[i].call, position)
        at = {i: position for position, i in enumerate(before)}
        places = {at[cut.behind] + 1: cut for cut in cuts if cut.behind in at}
        for earlier, position in begun.items():
            if earlier and step.calls[earlier - 1]:
                places.setdefault(position, Cut(before[position - 1]))
        places.pop(0, None)
        late = [i for i in step.order if ops[i].call == call]
        self._split(before, late, places, (call,))

    def _made_before(self, call: int) -> list[int]:
        """All that was made before a call, copies for earlier calls included: each just before what reads it."""
        found: dict[int, None] = {}
        for i in self.step.order:
            if self.ops[i].call < call:
                stack = [i]
                while stack:
                    reads = {t[0] for t in self.ops[stack[-1]].inputs}
                    missing = sorted(j for j in reads if j not in found and self.ops[j].segment)
                    if missing:
                        stack += missing[::-1]
                    else:
                        found[stack.pop()] = None
        return list(found)

    def _split(self, before: Sequence[int], late: Sequence[int], places: dict[int, Cut], tag: tuple[int, ...]) -> None:
        """Copy what `late` operations read of those `before`, cut at some positions, but for the last segment."""
        ops = self.ops
        at = {i: position for position, i in enumerate(before)}
        readers_of: dict[Tensor, list[int]] = defaultdict(list)  # by droppable buffer, the late operations that read it
        for i in late:
            for b in dict.fromkeys(map(self._buffer, ops[i].inputs)):
                if b[0] in at and self._is_planned(b) and not ops[b[0]].is_gradient:
                    readers_of[b].append(i)
        saved, bounds = readers_of.keys(), sorted(places)
        inside: list[list[Tensor]] = [[] for _ in range(len(bounds) + 1)]
        for b in saved:
            inside[bisect.bisect_right(bounds, at[b[0]])].append(b)
        order = {i: k for k, i in enumerate(late)}
        stored: set[Tensor] = set()  # what copies of later segments read of those before them
        for j, (start, end) in reversed(list(enumerate(zip([0, *bounds], bounds)))):
            dropped = {b for b in inside[j] if b not in stored}
            if not dropped or places[end].keep:
                continue
            given = functools.partial(self._is_given, at, start, saved, dropped, stored)
            reading = sorted({i for b in dropped for i in readers_of[b]}, key=order.__getitem__)
            read = {t for i in reading for t in ops[i].inputs if t[0] in at and self._buffer(t) in dropped}
            copy_of = self._copy({t for t in read if not given(t)}, given, at, tag, j)
            stored |= {b for i in copy_of for b in map(self._buffer, ops[i].inputs) if at.get(b[0], start) < start}
            readers = []
            for i in reading:
                inputs = tuple((copy_of.get(t[0], t[0]), t[1]) if t in read else t for t in ops[i].inputs)
                if inputs != ops[i].inputs:
                    ops[i] = dataclasses.replace(ops[i], inputs=inputs)
                    readers.append(i)
            if cuts := places[end].inside:
                copies = list(copy_of.values())
                self._split(copies, readers, self._inner(copies, cuts), (*tag, j))

    def _inner(self, copies: Sequence[int], cuts: Iterable[Cut]) -> dict[int, Cut]:
        """The cuts among copies by position. Copies that end where an inner segment does are cut as that is."""
        places, found = [self.step.at[self.ops[copy].traced] for copy in copies], dict[int, Cut]()
        for cut in cuts:
            position = bisect.bisect_right(places, self.step.at[cut.behind])  # that may be behind what has no copy
            if position == len(copies):
                return found | self._inner(copies, cut.inside)
            found[position] = cut
        return found

    def _is_given(
        self,
        at: dict[int, int],
        start: int,
        saved: Collection[Tensor],
        dropped: Collection[Tensor],
        stored: Collection[Tensor],
        tensor: Tensor,
    ) -> bool:
        """Whether the copies of a segment that begins at `start` read a tensor rather than make it."""
        number, buffer = tensor[0], self._buffer(tensor)
        if number in at and (buffer[0] in self.free or self.ops[buffer[0]].traced in self.free):
            return not self._may_copy(number)
        if at.get(number, -1) < start or buffer in stored or not self._may_copy(number):
            return True
        return buffer not in dropped and (buffer in saved or not self._is_planned(buffer))

    def _copy(
        self, wanted: set[Tensor], is_given: Callable[[Tensor], bool], at: dict[int, int], tag: tuple[int, ...], j: int
    ) -> dict[int, int]:
        """Copies, in order, of what makes the wanted tensors of what is given: their numbers by those they copy."""
        ops, copied, stack = self.ops, set(), [t[0] for t in wanted]
        while stack:
            i = stack.pop()
            if i not in copied:
                copied.add(i)
                stack += [t[0] for t in ops[i].inputs if not is_given(t)]
        copy_of = {i: self.next + k for k, i in enumerate(sorted(copied, key=at.__getitem__))}
        self.next += len(copied)
        for i, copy in copy_of.items():
            op = ops[i]
            inputs = tuple((copy_of.get(t[0], t[0]), t[1]) if not is_given(t) else t for t in op.inputs)
            ops[copy] = dataclasses.replace(
                op,
                name=f"again/{'/'.join(map(str, (*tag, j)))}/{op.name}",
                inputs=inputs,
                call=tag[0],
                traced=op.traced if op.segment else i,
                segment=(*tag, j),
            )
        return copy_of

    def _buffer(self, tensor: Tensor) -> Tensor:
        ops, op = self.ops, self.ops[tensor[0]]
        while op.type in VIEWS and op.inputs:
            tensor = op.inputs[tensor[1] if op.type == "IdentityN" else 0]
            op = ops[tensor[0]]
        return tensor

    def _is_planned(self, buffer: Tensor) -> bool:
        op = self.ops[buffer[0]]
        return op.sizes[buffer[1]] >= self.step.small and op.type not in NOT_OF_THE_STEP

    def _may_copy(self, number: int) -> bool:
        op = self.ops[number]
        return not (op.is_stateful or op.is_gradient or op.type in NOT_OF_THE_STEP)
