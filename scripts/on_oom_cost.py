"""What `on_oom="replan"` costs a step that stays within memory: peak, CPU time and tracing; one process a case."""

import multiprocessing
import os
import statistics
import sys
import time

os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")  # else TensorFlow counts no memory on some CPUs

CASES = {"convolutions": 16, "dense": 256}
LINE = "{:12}  {:8}  {!s:6}  {:7.1f} MB beyond {:6.1f} MB held  {:5.0f} ms of CPU a step  {:5.1f} s of CPU at first"


def built(name):
    import keras

    layers = keras.layers
    if name == "dense":
        inner = [layers.Dense(1024, activation="relu") for _ in range(12)]
        return keras.Sequential([keras.Input((1024,)), *inner, layers.Dense(1)])
    inner = []
    for _ in range(10):
        inner += [layers.Conv2D(16, 3, padding="same"), layers.BatchNormalization(), layers.ReLU()]
    return keras.Sequential([keras.Input((64, 64, 16)), *inner, layers.GlobalAveragePooling2D(), layers.Dense(1)])


def measured(name, mode, on_oom):
    import tensorflow as tf

    import tfgc

    model, batch = built(name), CASES[name]
    x, y = tf.random.normal([batch, *model.input_shape[1:]]), tf.zeros([batch, 1])
    plan = tfgc.plan(model, batch, strategy="sqrt")
    step = tfgc.train_step(model, "mse", "adam", plan=plan, run_eagerly=mode == "compiled", on_oom=on_oom)
    started = time.process_time()
    step(x, y)
    first = time.process_time() - started
    step(x, y)
    peaks, seconds, held = [], [], 0
    for _ in range(5):
        tf.config.experimental.reset_memory_stats("CPU:0")
        held = tf.config.experimental.get_memory_info("CPU:0")["current"]
        started = time.process_time()
        step(x, y)
        seconds.append(time.process_time() - started)
        peaks.append(tf.config.experimental.get_memory_info("CPU:0")["peak"] - held)
    return max(peaks) / 1e6, held / 1e6, statistics.median(seconds) * 1e3, first


def main():
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for name in sys.argv[1:] or CASES:
            for mode in ("graph", "compiled"):
                for on_oom in (None, "replan"):
                    print(LINE.format(name, mode, on_oom, *pool.apply(measured, (name, mode, on_oom))))


if __name__ == "__main__":
    main()
