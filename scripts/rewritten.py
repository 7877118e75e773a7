"""A training step plain, as tfgc runs it today, and traced once and rewritten: memory, time and losses, in turn.

    python scripts/rewritten.py ResNet50:128 16
    python scripts/rewritten.py transformer_encoder 8 --rounds 9

NETWORK is a name that the shell takes too, an image size behind a colon. Each way trains a model of its own, from the
same weights, by SGD on a squared error in a tf.function. Peaks are the allocator's above what is held before a step.
`--off` turns TensorFlow's graph optimizer off, where the rewritten step has the bits of the plain one.
"""

import argparse
import statistics
import time

import keras
import numpy as np
import tensorflow as tf

import tfgc


def build(name):
    keras.utils.clear_session()
    keras.utils.set_random_seed(1)
    network, _, size = name.partition(":")
    return tfgc.zoo.build(network, int(size) if size else None)


def batch(model, count):
    draws = np.random.default_rng(0)

    def tensor(spec):
        shape = (count, *(size or 64 for size in spec.shape[1:]))
        made = draws.random(shape) if "float" in spec.dtype else draws.integers(0, 20, shape)
        return tf.constant(made, spec.dtype)

    x = [tensor(spec) for spec in model.inputs]
    return x if len(x) > 1 else x[0]


def step_of(model):
    optimizer = keras.optimizers.SGD(0.01)
    optimizer.build(model.trainable_variables)

    def step(x):
        with tf.GradientTape() as tape:
            outputs = tf.nest.flatten(model(x, training=True))
            loss = tf.add_n([tf.reduce_mean((tf.cast(o, tf.float32) - 1.0) ** 2) for o in outputs])
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    return step


def today(model, count):
    tfgc.enable(model, tfgc.plan(model, count, verbose=0))
    return tf.function(step_of(model))


WAYS = {
    "plain": lambda model, count: tf.function(step_of(model)),
    "tfgc today": today,
    "rewritten": lambda model, count: tfgc.function(step_of(model)),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network")
    parser.add_argument("batch", type=int)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--off", action="store_true")
    given = parser.parse_args()
    if given.off:
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    x, runs, first, losses = None, {}, {}, {}
    for name, make in WAYS.items():
        model = build(given.network)
        x = batch(model, given.batch) if x is None else x
        begin = time.perf_counter()
        runs[name] = make(model, given.batch)
        losses[name] = [float(runs[name](x))]
        first[name] = time.perf_counter() - begin
    seconds, peaks = ({name: [] for name in runs} for _ in range(2))
    for _ in range(given.rounds):
        for name, run in runs.items():
            with tfgc.peak() as peak:
                begin = time.perf_counter()
                losses[name].append(float(run(x)))
                seconds[name].append(time.perf_counter() - begin)
            peaks[name].append(peak.peak_bytes - peak.held_bytes)
    for name in runs:
        ratios = [a / b for a, b in zip(seconds[name], seconds["plain"])]
        apart = max(abs(a - b) / abs(b) for a, b in zip(losses[name], losses["plain"]))
        print(
            f"{name:12} {statistics.median(peaks[name]) / 1e6:8.1f} MB, x {statistics.median(ratios):.3f} "
            f"({min(ratios):.2f} to {max(ratios):.2f}), first step {first[name]:.1f} s, losses apart by {apart:.1e}"
        )


if __name__ == "__main__":
    main()
