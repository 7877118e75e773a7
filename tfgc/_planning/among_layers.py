"""Which of some layers to recompute, each as one segment, for a step to fit: as few as that takes."""

import bisect
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

from tfgc._planning.candidates import Candidate
from tfgc._rewrite.recompute import Cut
from tfgc._step.step import Step

# Where the operations of the calls of one layer begin and end.
Spans: TypeAlias = Sequence[tuple[int, int]]

# Layers that are tried at the end, whether the step fits without them.
_SPARED = 12


def fewest(step: Step, spans: Sequence[Spans], room: int, judged: Callable[[Iterable[Cut]], Candidate]) -> Candidate:
    """The step with some of these layers recomputed whose peak is within the room; that of least peak if none is.

    Args:
        step: The step, condensed, with the numbers of the trace.
        spans: Of each layer, one behind the other and none in another.
        room: Bytes.
        judged: Gives the step by some cuts.
    """
    saved = [_saved_bytes(step, each) for each in spans]
    order = sorted((i for i, count in enumerate(saved) if count), key=lambda i: -saved[i])

    def by(chosen: Iterable[int]) -> Candidate:
        return judged(_cuts(step, (span for i in chosen for span in spans[i])))

    most = by(order)
    if most.peak_bytes > room:
        return most
    count = bisect.bisect_left(range(len(order)), True, key=lambda k: by(order[:k]).peak_bytes <= room)
    chosen, best = order[:count], by(order[:count])
    for i in order[:count][-_SPARED:]:
        less = by(fewer := [other for other in chosen if other != i])
        if less.peak_bytes <= room:
            chosen, best = fewer, less
    return best


def _cuts(step: Step, spans: Iterable[tuple[int, int]]) -> Iterator[Cut]:
    """A cut before and behind each span: what lies between two of them is kept."""
    numbers, until = sorted(step.ops), -1
    for start, end in sorted(spans):
        first, last = (bisect.bisect_left(numbers, i) - 1 for i in (start, end))
        if first > until:
            yield Cut(numbers[first], keep=True)
        if last > max(first, until):
            yield Cut(numbers[last])
        until = last


def _saved_bytes(step: Step, spans: Spans) -> int:
    """Bytes of what is made there and read by gradients."""
    made = [b for start, end in spans for i in range(start, end) for b in step.makes.get(i, ())]
    late = [b for b in made if any(step.ops[r].is_gradient for r in step.readers.get(b, ()))]
    return sum(map(step.size, late))
