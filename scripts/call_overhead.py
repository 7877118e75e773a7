"""Measure the Python overhead of calling a recomputed function in an eager loop, forward and backward.

The function has one tiny operation. It is called under a tape with 1 to 32 arguments, or with one argument and up to 32
Keras variables that it reads. The overhead is the time of a call with its gradient minus that of the same code as a
plain `tf.function`. All cases are timed in turn, in one process, since machines get slower and faster meanwhile: the
medians of many rounds, and of the difference in each.

    python scripts/call_overhead.py
"""

import statistics
import time
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

import tfgc

CALLS, ROUNDS = 40, 60
CASES = [*((n, 0) for n in (1, 2, 4, 8, 16, 32)), *((1, n) for n in (2, 8, 32))]


def main():
    calls = {case: made(*case) for case in CASES}
    times = {case: [] for case in CASES}
    for _ in range(ROUNDS + 1):
        for case in CASES:
            times[case].append(measured(*calls[case]))
    print(
        "| arguments | variables | plain tf.function | segment | beyond plain |\n| ---: | ---: | ---: | ---: | ---: |"
    )
    beyond = {}
    for (n, variables), (_, *rounds) in times.items():  # The first one traces.
        plain, segment = map(statistics.median, zip(*rounds))
        beyond[n, variables] = statistics.median(segment - plain for plain, segment in rounds)
        print(f"| {n} | {variables} | {plain:.0f} us | {segment:.0f} us | {beyond[n, variables]:.0f} us |")
    for what, rows, target in (
        ("argument", [(n, 0) for n in (1, 2, 4, 8, 16, 32)], "200 us + 1 us"),
        ("variable", [(1, n) for n in (0, 2, 8, 32)], "150 us + 4 us"),
    ):
        slope, base = np.polyfit(
            [max(row) if what == "argument" else row[1] for row in rows], [beyond[r] for r in rows], 1
        )
        print(f"\nbeyond plain: {base:.0f} us + {slope:.1f} us for each {what} (target: {target} for each)")


def made(n, n_variables) -> tuple[Callable, Callable]:
    """Calls with their gradients, plain and as a segment."""
    xs = [tf.ones((2,)) for _ in range(n)]
    variables = [keras.Variable(np.ones(2, "float32")) for _ in range(n_variables)]

    def body(*x):
        return [tf.add_n([*x, *(v.value for v in variables)]) * 2.0]

    plain = tf.function(body, autograph=False)
    segment = tfgc.recompute(body)
    sources = [*xs, *(v.value for v in variables)]

    def gradient(call):
        with tf.GradientTape() as tape:
            tape.watch(xs)
            (y,) = call(*xs)
        return tape.gradient(y, sources)

    return lambda: gradient(plain), lambda: gradient(segment)


def measured(*calls):
    """Microseconds of each call."""
    found = []
    for call in calls:
        begin = time.perf_counter()
        for _ in range(CALLS):
            call()
        found.append((time.perf_counter() - begin) / CALLS * 1e6)
    return found


if __name__ == "__main__":
    main()
