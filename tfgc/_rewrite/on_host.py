"""Buffers that wait for gradients in the host's memory: Step -> Step.

What goes there is read last, in the forward part, by a segment that is to offload, and made before that: its inputs. A
buffer goes as soon as it is made, and its device memory ends with its last forward use. It comes back once for each
gradient call that reads it, or copies that do; views are made of it again.
"""

import bisect
import dataclasses
import itertools
from collections.abc import Mapping, Sequence

from tfgc._step.step import FROM_HOST, TO_HOST, Op, Step, Tensor


def stored(step: Step, segments: Mapping[int, bool]) -> Step:
    """A step with what some segments read last on the host; the copies are in no order yet.

    Args:
        step: The step, with copies of what is recomputed.
        segments: For each operation behind which a segment ends whether that is to offload, in order.
    """
    return _Mover(step, segments).moved() if any(segments.values()) else step


def last_readers(step: Step, ends: Sequence[int]) -> dict[Tensor, int]:
    """For each planned buffer of the forward part that is read there, the last segment that does."""
    found: dict[Tensor, int] = {}
    for i, op in step.ops.items():
        for buffer in step.reads[i] if not (_is_late(op) or op.type == TO_HOST) else ():
            found[buffer] = max(found.get(buffer, 0), bisect.bisect_left(ends, i))
    return found


def fetched_ahead(step: Step) -> Step:
    """A step in whose order each buffer comes back just before the first use of the one that came back before it."""
    fetches = [i for i in step.order if step.ops[i].type == FROM_HOST]
    places: dict[int, float] = {}
    for before, i in itertools.pairwise(fetches):
        place = step.at[step.readers[before, 0][0]] - 0.5
        if step.ops[before].call == step.ops[i].call and step.at[step.ops[i].inputs[0][0]] < place:
            places[i] = min(place, step.at[i])
    return step.reordered(sorted(step.order, key=lambda i: places.get(i, step.at[i]))) if places else step


def host_bytes(step: Step) -> int:
    """The most bytes that a step has on the host at once."""
    change = [0] * (len(step.order) + 1)
    last = {step.ops[i].inputs[0][0]: at for i, at in step.at.items() if step.ops[i].type == FROM_HOST}
    for i, until in sorted(last.items()):
        change[step.at[i]] += (size := step.size(step.ops[i].inputs[0]))
        change[until + 1] -= size
    return max(itertools.accumulate(change))


def _is_late(op: Op) -> bool:
    return op.is_gradient or bool(op.segment)


class _Mover:
    def __init__(self, step: Step, segments: Mapping[int, bool]) -> None:
        ends, offload = [*segments], [*segments.values(), False]
        self.step, self.ops, self._last = step, dict(step.ops), last_readers(step, ends)
        kept = {step.buffer(tensor) for tensor in step.results}
        self._hosted = {
            b for b, reader in self._last.items()
            if offload[reader] and bisect.bisect_left(ends, b[0]) < reader and not _is_late(step.ops[b[0]])
        } - kept  # fmt: skip
        self._next = max(step.ops, default=-1) + 1
        self._sent: dict[Tensor, Tensor] = {}
        self._fetched: dict[tuple[Tensor, int], Tensor] = {}

    def moved(self) -> Step:
        step, ops = self.step, self.ops
        for i in step.order:
            op = step.ops[i]
            if _is_late(op) and not self._hosted.isdisjoint(step.reads[i]):
                ops[i] = dataclasses.replace(op, inputs=tuple(self._late(t, op) for t in op.inputs))
        added = (i for i in ops if i not in step.at)
        return dataclasses.replace(step, ops=ops, order=(*step.order, *added))

    def _late(self, tensor: Tensor, reader: Op) -> Tensor:
        """What a late operation reads in place of a tensor."""
        op, buffer = self.ops[tensor[0]], self.step.buffer(tensor)
        if buffer not in self._hosted or _is_late(op):
            return tensor
        key = tensor, reader.call
        if key not in self._fetched:
            self._fetched[key] = self._fetch(tensor, op, reader, (reader.call, self._last[buffer]))
        return self._fetched[key]

    def _fetch(self, tensor: Tensor, op: Op, reader: Op, segment: tuple[int, ...]) -> Tensor:
        name, late = f"{len(self._fetched)}/{op.name}", {"call": reader.call, "segment": reader.segment or segment}
        if op.type == "IdentityN":
            return self._late(op.inputs[tensor[1]], reader)
        if self.step.buffer(tensor) != tensor:
            read = (self._late(op.inputs[0], reader), *op.inputs[1:])
            return self._add(dataclasses.replace(op, name=f"again/host/{name}", inputs=read, traced=tensor[0], **late))
        if tensor not in self._sent:
            name = f"{len(self._sent)}/{op.name}"
            sent = Op(f"to_host/{name}", TO_HOST, (tensor,), sizes=(0,), call=op.call, traced=tensor[0])
            self._sent[tensor] = self._add(sent)
        size = self.step.size(tensor)
        return self._add(
            Op(f"from_host/{name}", FROM_HOST, (self._sent[tensor],), sizes=(size,), traced=tensor[0], **late)
        )

    def _add(self, op: Op) -> Tensor:
        self.ops[self._next] = op
        self._next += 1
        return self._next - 1, 0
