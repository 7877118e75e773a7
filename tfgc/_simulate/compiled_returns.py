"""What compiled segments, called from Python, keep until their backward pass returns."""

from collections.abc import Sequence

from tfgc._core.buffers import Buffers
from tfgc._core.cotangents import CotangentChanges
from tfgc._simulate.event import Event, Run


def saved(b: Buffers, part: Sequence[int], run: Run) -> list[int]:
    """The copies of the buffers that a kept segment saved for its backward pass."""
    numbers = [run.held[number] for i in part for number in b.saved[i]]
    return numbers + [run.internal[i] for i in part if i in run.internal]


def returned(b: Buffers, part: Sequence[int], run: Run, keep: bool) -> list[int]:
    """What a segment returned and somebody holds: the caller what the model returns, a tape all of a kept segment."""
    made = [number for i in part for number in b.outputs[i]]
    held = (n for n in made if n in b.graph_outputs or (keep and set(b.readers[n]).difference(part)))
    return [run.held[number] for number in held]


def event(b: Buffers, part: Sequence[int], held: list[int], events: Sequence[Event], pending: int) -> Event:
    """The return of a backward pass of these `events`, until which `held` and the upstream gradients stay."""
    made: set[int] = set()
    upstream: list[int] = []
    upstream_bytes = 0
    for one in events:
        one.extra_bytes += upstream_bytes
        sums, new, ended = one.cotangents
        made.update(number for number, _ in (*sums, *new))
        staying = [number for number in ended if number not in made]
        upstream_bytes += sum(b.cotangent_bytes[number] for number in staying)
        upstream += staying
        one.cotangents = CotangentChanges(sums, new, tuple(number for number in ended if number in made))
    extra = b.pending_gradient_bytes[part[0]] + upstream_bytes + pending
    return Event(part[0], "return", held, [], extra, cotangents=CotangentChanges(ended=tuple(upstream)))
