"""What a recomputed piece of a step runs again, reads and waits for.

A piece is one call, or several calls of one functional model, a segment, that run again together. The replay of a
selective one takes over dear products of the first run.
"""

import dataclasses
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
    # Buffers of the first run that it reads, and so keeps: from outside, and products that it takes over.
    inputs: frozenset[int]
    upstream: frozenset[int]  # the late operations outside that it waits for before it starts
    work: int  # of what runs again


def replay(step: Step, piece: Piece) -> Replay:
    """The `Replay` of a piece."""
    early = frozenset(i for call in piece.calls for i in step.spans[call])
    late = sorted({i for call in piece.calls for i in step.late_of.get(call, ())})
    mine = frozenset(late)
    remade, leaves = _remade(step, early, mine)
    stored = stored_products(step, piece)
    inputs = set(remade & stored)
    remade -= stored
    runs: set[int] = set()
    stack, seen = list(remade), set(remade)
    while stack:
        maker = step.makers[stack.pop()]
        if maker in runs:
            continue
        runs.add(maker)
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
        upstream=_upstream(step, mine),
        work=sum(step.operations[i].work for i in ordered),
    )


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
