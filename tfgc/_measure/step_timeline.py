"""The bytes that the allocator has handed out over one step, sampled from a thread."""

import threading
import time
from collections.abc import Callable

_SAMPLE_SECONDS = 0.002
# Points of the line of bytes over time: a plot is 3.5 inches wide, and a results file holds a hundred lines.
_POINTS = 120


def timeline(step: Callable[[], float], allocated: Callable[[], int]) -> tuple[tuple[float, int], ...]:
    """Pairs (seconds, bytes above those at its start) over one more step, which is not a timed one."""
    samples = [(0.0, allocated())]
    done = threading.Event()
    begin = time.perf_counter()

    def sample() -> None:
        while not done.is_set():
            samples.append((time.perf_counter() - begin, allocated()))
            time.sleep(_SAMPLE_SECONDS)

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        step()
    finally:  # else the process would wait for the thread when it ends
        done.set()
        thread.join()
    base = samples[0][1]
    return tuple((round(when, 4), count - base) for when, count in thinned(samples))


def thinned(samples: list[tuple[float, int]]) -> list[tuple[float, int]]:
    """At most `_POINTS` of the samples, pairs (when, bytes): the largest of each group, so that no peak is lost.

    >>> len(thinned([(0.1, 3), (0.2, 5), (0.3, 4)] * 100))
    100
    """
    stride = -(-len(samples) // _POINTS)
    return [max(samples[i : i + stride], key=lambda pair: pair[1]) for i in range(0, len(samples), stride)]
