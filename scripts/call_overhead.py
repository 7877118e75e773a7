"""What Python costs for each call of a compiled segment in an eager loop, forward and backward.

A segment of one tiny operation, called with 1 to 32 arguments under a tape: the time of a call with its gradient
beyond that of the same code as a plain `tf.function`. Medians of many calls, in one process.

    python scripts/call_overhead.py
"""

import statistics
import time

import numpy as np
import tensorflow as tf

from tfgc._block import Block

CALLS, ROUNDS = 200, 15


def main():
    rows = [(n, *measure(n)) for n in (1, 2, 4, 8, 16, 32)]
    print(
        "| arguments | plain tf.function | segment | forward alone | beyond plain |\n"
        "| ---: | ---: | ---: | ---: | ---: |"
    )
    for n, plain, segment, forward in rows:
        print(f"| {n} | {plain:.0f} us | {segment:.0f} us | {forward:.0f} us | {segment - plain:.0f} us |")
    slope, base = np.polyfit([n for n, *_ in rows], [s - p for _, p, s, _ in rows], 1)
    print(f"\nbeyond plain: {base:.0f} us + {slope:.1f} us for each argument (target: 200 us + 1 us)")


def measure(n):
    """Microseconds of a call with its gradient, plainly and as a segment, and of the segment's call alone."""
    xs = [tf.ones((2,)) for _ in range(n)]
    body = lambda *x: [tf.add_n(x)] if len(x) > 1 else [x[0] * 2.0]
    plain = tf.function(body, autograph=False)
    block = Block(body, name="tiny", compiled=True)

    def gradient(call):
        with tf.GradientTape() as tape:
            tape.watch(xs)
            (y,) = call(*xs)
        return tape.gradient(y, xs)

    def forward(call):
        with tf.GradientTape() as tape:
            tape.watch(xs)
            return call(*xs)

    tasks = {"plain": lambda: gradient(plain), "segment": lambda: gradient(block), "forward": lambda: forward(block)}
    for task in tasks.values():
        task()
    times = {name: [] for name in tasks}
    for _ in range(ROUNDS):
        for name, task in tasks.items():
            begin = time.perf_counter()
            for _ in range(CALLS):
                task()
            times[name].append((time.perf_counter() - begin) / CALLS * 1e6)
    return [statistics.median(times[name]) for name in ("plain", "segment", "forward")]


if __name__ == "__main__":
    main()
