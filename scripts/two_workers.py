"""Train over two worker processes, plain and with tfgc, and compare the weights after three steps.

    python scripts/two_workers.py          # start both workers and print a table; the exit code is 0 if equal, else 1
    python scripts/two_workers.py --naive  # use tf.recompute_grad instead of tfgc: not equal

The workers communicate by gRPC, through TensorFlow's MultiWorkerMirroredStrategy. On several machines, start one
process on each with a TF_CONFIG that names all of them; the training code stays the same.
"""

import argparse
import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")  # else TensorFlow counts no memory on some CPUs

WORKERS, STEPS, BATCH = 2, 3, 32


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--naive", action="store_true", help="use tf.recompute_grad instead of tfgc, to see it fail")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument("--limit", type=int, default=300, help="stop the workers after this many seconds")
    parser.add_argument("--answer", type=pathlib.Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.answer:
        # Whatever happens to the parent process, no worker waits forever.
        signal.alarm(arguments.limit)
        arguments.answer.write_text(json.dumps(worker(arguments.naive)))
        return
    rows = start(arguments.naive, arguments.limit)
    print(json.dumps(rows) if arguments.json else table(rows))
    sys.exit(not all(row["error"] or row["difference"] == 0 for row in rows))


def start(naive, limit):
    """Run the workers until all have answered; if one fails, print its last lines and stop the others."""
    for stop in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stop, lambda *_: sys.exit("stopped"))
    addresses = [f"localhost:{port}" for port in free_ports(WORKERS)]
    end = time.monotonic() + limit
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        files = [pathlib.Path(folder, f"worker{i}") for i in range(WORKERS)]
        processes = []
        for i, file in enumerate(files):
            config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": i}}
            command = [sys.executable, __file__, "--limit", str(limit), "--answer", file] + ["--naive"] * naive
            log = stack.enter_context(open(file.with_suffix(".log"), "w"))
            environment = {**os.environ, "TF_CONFIG": json.dumps(config)}
            processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
            stack.callback(processes[i].wait)
            stack.callback(processes[i].kill)
        while any(process.poll() is None for process in processes):
            if time.monotonic() > end:
                sys.exit(f"the workers were not done after {limit} seconds and have been stopped")
            for i, process in enumerate(processes):
                if process.poll():
                    last = files[i].with_suffix(".log").read_text().splitlines()[-12:]
                    sys.exit("\n".join([f"worker {i} ended with code {process.returncode}:", *last]))
            time.sleep(0.1)
        return [row for file in files for row in json.loads(file.read_text())]


def free_ports(count):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("localhost", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]


def table(rows):
    lines = [f"{'worker':8}{'loop':13}{'difference':>10}{'peak, plain':>14}{'peak, tfgc':>13}"]
    for row in rows:
        begin = f"{row['worker']:<8}{row['loop']:13}"
        megabytes = [f"{peak / 1e6:.1f} MB" for peak in row.get("peaks", ())]
        lines.append(begin + (row["error"] or "{:10.1e}{:>14}{:>13}".format(row["difference"], *megabytes)))
    said = (
        f"difference: the largest relative difference of a weight or statistic from plain tf.function, in {STEPS} steps"
    )
    return "\n".join([*lines, said])


def worker(naive):
    """Train in each way, and return how far apart this worker's variables end."""
    import tensorflow as tf

    # Before anything else: it starts TensorFlow's runtime with the devices of all workers.
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    import keras

    # Which rounds differently where it fuses other operations.
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    rows = []
    for loop in ("tf.function", "eager", "fit"):
        rows.append({"worker": strategy.cluster_resolver.task_id, "loop": loop, "error": None})
        change = recompute_naively if naive else recompute
        try:
            plain, plain_peak = train(strategy, loop, lambda model: None)
        except ValueError as error:
            if loop != "fit":
                raise
            plainly = str(error).splitlines()[0]
            rows[-1]["error"] = f"plain fit is refused by Keras {keras.__version__}: {plainly}"
            rows[-1]["refused"] = {"plain": plainly, "tfgc": refusal(strategy, loop, change)}
            continue
        ours, peak = train(strategy, loop, change)
        if loop != "eager":
            # An eager loop's segments are compiled, which rounds as tf.function does and not as single ops do.
            baseline = plain
        distances = [apart(a, b) for a, b in zip(baseline, ours, strict=True)]
        rows[-1] |= {"difference": float(max(distances)), "peaks": (plain_peak, peak), "sum": float(ours[0].sum())}
    return rows


def refusal(strategy, loop, change):
    """The first line of the error with which a loop ends; None if it trains."""
    try:
        train(strategy, loop, change)
    except ValueError as error:
        return str(error).splitlines()[0]


def apart(a, b):
    """Return the distance of two arrays relative to the norm of the first; seeds and counters are equal or not."""
    import numpy as np

    if np.issubdtype(a.dtype, np.integer):
        return 0.0 if np.array_equal(a, b) else np.inf
    a, b = a.astype("float64"), b.astype("float64")
    return np.linalg.norm(a - b) / max(np.linalg.norm(a), 1e-9)


def recompute(model):
    import tfgc

    tfgc.enable(model, tfgc.plan(model, strategy="uniform", segments=4))


def recompute_naively(model):
    import tensorflow as tf

    run = model.call
    model.call = lambda x, training=None, mask=None: tf.recompute_grad(lambda t: run(t, training=training))(x)


def network():
    """Build a network with Dropout and statistics, which a second run could spoil, and without biases.

    The gradients of such biases are only rounding.
    """
    from keras import Input, Sequential, layers

    model = Sequential([Input((32, 32, 3))])
    for _ in range(4):
        model.add(layers.Conv2D(16, 3, padding="same", use_bias=False))
        model.add(layers.BatchNormalization())
        model.add(layers.ReLU())
        model.add(layers.Dropout(0.2))
    model.add(layers.GlobalAveragePooling2D())
    model.add(layers.Dense(10))
    return model


def train(strategy, loop, change):
    """Return every variable of this worker after the steps, and the peak of a step above what is resident."""
    import keras
    import numpy as np
    import tensorflow as tf

    keras.utils.clear_session()
    keras.utils.set_random_seed(1)
    random = np.random.default_rng(1)
    x, y = random.standard_normal((STEPS * BATCH, 32, 32, 3)).astype("float32"), random.integers(0, 10, STEPS * BATCH)
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)
    with strategy.scope():
        model = network()
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
        optimizer.build(model.trainable_variables)
        model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    change(model)

    def replica_step(x, y):
        with tf.GradientTape() as tape:
            # Keras divides it by the number of replicas, whose gradients are summed.
            loss = model.compute_loss(x, y, model(x, training=True))
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))

    def run(x, y):
        return strategy.run(replica_step, args=(x, y))

    step = tf.function(run) if loop == "tf.function" else run

    def memory():
        return tf.config.experimental.get_memory_info("CPU:0")

    resident = memory()["current"]
    tf.config.experimental.reset_memory_stats("CPU:0")
    if loop == "fit":
        model.fit(data, verbose=0)
    else:
        for batch in strategy.experimental_distribute_dataset(data):
            step(*batch)
    copies = [v for variable in model.variables for v in strategy.experimental_local_results(variable.value)]
    return [v.numpy() for v in copies], memory()["peak"] - resident


if __name__ == "__main__":
    main()
