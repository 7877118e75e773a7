"""What a recomputed piece of a step runs again, reads and waits for.

A piece is one call, or several calls of one functional model, a segment, that run again together. Its replay takes over
small results of the first run, and random masks in bits; that of a selective one dear products, too.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tfgc._calls.step import Call, Step


class Piece(NamedTuple):
    """Calls that run again together, and whether their replay takes over dear products."""

    calls: tuple[Call, ...]
    selective: bool = False


@dataclasses.dataclass(frozen=True)
class Replay:
    """The second run of a piece."""

    early: frozenset[int]  # the operations of its forward pass
    late: tuple[int, ...]  # those of its backward pass
    runs: tuple[int, ...]  # the early ones that run again
    remade: frozenset[int]  # buffers that its backward pass reads from the second run
    leaves: frozenset[int]  # those of them that other calls read, too, from the first run
    # Buffers of the first run that it reads, and so keeps: from outside, and results that it takes over.
    inputs: frozenset[int]
    unpacked: Mapping[int, int]  # for operations whose mask it unpacks instead, the buffer of the bits
    upstream: frozenset[int]  # the late operations outside that it waits for before it starts
    work: int  # of what runs again


def replay(step: Step, piece: Piece) -> Replay:
    """The `Replay` of a piece."""
    early = frozenset(i for call in piece.calls for i in step.spans[call])
    late = sorted({i for call in piece.calls for i in step.late_of.get(call, ())})
    mine = frozenset(late)
    remade, leaves = _remade(step, early, mine)
    copied = step.uncopied.isdisjoint(piece.calls)
    stored = stored_products(step, piece) | {b for b in step.small if copied and step.makers[b] in early}
    packed = {step.makers[mask]: bits for mask, bits in step.packed.items()} if copied else {}
    inputs = set(remade & stored)
    remade -= stored
    runs: set[int] = set()
    unpacked: dict[int, int] = {}
    stack, seen = list(remade), set(remade)
    while stack:
        maker = step.makers[stack.pop()]
        if maker in runs:
            continue
        runs.add(maker)
        if maker in packed:
            unpacked[maker] = packed[maker]
            inputs.add(packed[maker])
            continue
        for buffer in step.operations[maker].reads:
            if step.makers[buffer] not in early or buffer in stored:
                inputs.add(buffer)
            elif buffer not in seen:
                seen.add(buffer)
                stack.append(buffer)
    for i in late:
        outside = (b for b in step.operations[i].reads if step.makers[b] not in early)
        inputs.update(b for b in outside if not step.operations[step.makers[b]].late)
    ordered = tuple(sorted(runs))
    return Replay(
        early=early,
        late=tuple(late),
        runs=ordered,
        remade=remade,
        leaves=leaves,
        inputs=frozenset(inputs),
        unpacked=unpacked,
        upstream=_upstream(step, mine),
        work=sum(step.operations[i].work for i in ordered),
    )


def second_runs(step: Step, replay: Replay) -> Iterator[tuple[int, tuple[int, ...]]]:
    """The operations that run again, each with the buffers that it reads."""
    for i in replay.runs:
        yield i, (replay.unpacked[i],) if i in replay.unpacked else step.operations[i].reads


def stored_products(step: Step, piece: Piece) -> set[int]:
    """The products that a replay takes over: those that the forward pass reads in the call alone that makes them."""
    found: set[int] = set()
    if not piece.selective or not step.uncopied.isdisjoint(piece.calls):
        return found
    for call in piece.calls:
        inside = frozenset(step.spans[call])
        for buffer in step.products:
            early = (r for r in step.readers[buffer] if not step.operations[r].late)
            if step.makers[buffer] in inside and inside.issuperset(early):
                found.add(buffer)
    return found


def _remade(step: Step, early: frozenset[int], late: frozenset[int]) -> tuple[frozenset[int], frozenset[int]]:
    """Buffers made inside that the backward pass reads from the second run; those that are read outside, too."""
    remade, leaves = set(), set()
    for i in early:
        for buffer in step.operations[i].makes:
            readers = step.readers[buffer]
            outside = any(not step.operations[r].late and r not in early for r in readers)
            if any(r in late or (step.operations[r].late and not outside) for r in readers):
                remade.add(buffer)
                if outside:
                    leaves.add(buffer)
    return frozenset(remade), frozenset(leaves)


def _upstream(step: Step, mine: frozenset[int]) -> frozenset[int]:
    """What the backward pass of a piece waits for, without what itself waits for a part of the piece."""
    makers: set[int] = set()
    below: set[int] = set()
    for i in step.late:
        waits = step.operations[i].waits
        if i in mine:
            makers.update(other for other in waits if other not in mine)
        elif any(other in mine or other in below for other in waits):
            below.add(i)
    return frozenset(makers - below)
