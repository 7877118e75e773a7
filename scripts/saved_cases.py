"""Measure cases in a process each, and save and print what was found: what several scripts do with their own cases."""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

RESULTS = pathlib.Path(__file__).parent / "results"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")  # else TensorFlow counts no memory on some CPUs


def main(script, doc, names, results, measure, row, table, run=None, again=True):
    """Run a script from the shell.

    Args:
        script: Its file.
        doc: What its help says.
        names: Those of its cases.
        results: The file of the saved results, a dictionary by name.
        measure: Gives the results of a case, in a process of its own; None if there is `run`.
        row: A line for a case, given its name and results.
        table: All that is printed of the saved results.
        run: Gives the results of a case, and starts the processes that it takes.
        again: Whether cases that have results are measured again if none is named.
    """
    given = arguments(doc, names, {"--case": {"help": argparse.SUPPRESS}})
    if given.case:
        print(json.dumps(measure(given.case)))
        return
    saved = json.loads(results.read_text()) if results.exists() else {}
    if not given.table:
        for name in given.networks or [one for one in names if again or one not in saved]:
            saved[name] = run(name) if run else _by_script(script, name)
            results.write_text(json.dumps({one: saved[one] for one in names if one in saved}, indent=1) + "\n")
            print(row(name, saved[name]), flush=True)
    print(table(saved))


def arguments(doc, names, more):
    """What the shell gives a script: names of its cases, whether only to print what is saved, and more options."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", metavar="name", help=f"of {', '.join(names)}; default: all")
    parser.add_argument("--table", action="store_true", help="print the saved results and measure nothing")
    for option, settings in more.items():
        parser.add_argument(option, **settings)
    given = parser.parse_args()
    if unknown := set(given.networks) - set(names):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; choose from: {', '.join(names)}")
    return given


def _by_script(script, name):
    command = [sys.executable, script, "--case", name]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def peaks(device="CPU:0"):
    """A callback that lists for each batch the allocator's peak above what is held before it, and what is held."""
    import keras
    import tensorflow as tf

    class Peaks(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.found, self.held = [], []

        def on_train_batch_begin(self, batch, logs=None):
            tf.config.experimental.reset_memory_stats(device)
            self.held.append(tf.config.experimental.get_memory_info(device)["current"])

        def on_train_batch_end(self, batch, logs=None):
            self.found.append(tf.config.experimental.get_memory_info(device)["peak"] - self.held[-1])

    return Peaks()


def batches(tensors, steps):
    """A data set of so many equal batches of which the size is open, as it is in `fit` on arrays.

    It is made once, and kept: else a copy of it would be held while the next one is fetched.
    """
    import tensorflow as tf

    samples = len(tf.nest.flatten(tensors)[0])
    return tf.data.Dataset.from_tensor_slices(tensors).batch(samples).cache().repeat(steps)


def in_turn(steps, rounds, warm_up):
    """Run steps in turn, in rounds of which the first ones do not count.

    Args:
        steps: Functions by name, of which the first one is the plain step.
        rounds, warm_up: How many rounds count, and how many come before them.

    Returns:
        For each name the median seconds, the largest peak, and the ratios of time to the plain step, of each round and
        their median.
    """
    runs = {name: [] for name in steps}
    for _ in range(warm_up + rounds):
        for name, step in steps.items():
            runs[name].append(timed(step))
    counted = {name: found[warm_up:] for name, found in runs.items()}
    plain = next(iter(counted.values()))
    figures = {}
    for name, found in counted.items():
        ratios = [spent / beside for (spent, _), (beside, _) in zip(found, plain)]
        seconds, peaks = zip(*found)
        figures[name] = {"seconds": statistics.median(seconds), "peak": max(peaks), "ratios": ratios}
        figures[name]["ratio"] = statistics.median(ratios)
    return figures


def training_step(build, plan, loss_of, x, y):
    """A function that trains a model on a batch for a step, with SGD in a `tf.function`, by a plan if there is one."""
    import keras
    import tensorflow as tf

    import tfgc

    keras.utils.clear_session(free_memory=False)  # A plan names layers, and Keras numbers them in each process.
    keras.utils.set_random_seed(0)
    model = build()
    if plan is not None:
        tfgc.enable(model, plan)
    optimizer = keras.optimizers.SGD(1e-4)
    optimizer.build(model.trainable_variables)

    @tf.function(autograph=False)
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    return lambda: step(x, y).numpy()


def timed(step, *arguments):
    """Seconds of a step, and the allocator's peak above what is there before it."""
    import tensorflow as tf

    tf.config.experimental.reset_memory_stats("CPU:0")
    before = tf.config.experimental.get_memory_info("CPU:0")["current"]
    begin = time.perf_counter()
    step(*arguments)
    spent = time.perf_counter() - begin
    return spent, tf.config.experimental.get_memory_info("CPU:0")["peak"] - before
