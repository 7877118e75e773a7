"""Profile the memory of one training step line by line, with memory_profiler.

Prints the listing of one eager step of the sample CNN, plain and recomputed, each in its own process. It is the first
step of that process, tracing included: TensorFlow's allocator does not give memory back, so a later step shows nothing.
memory_profiler reads the resident set at the end of each line, so a peak inside `tape.gradient` is not visible here.
For peaks, use `tfgc compare`, which asks the allocator.
"""

import argparse
import os
import subprocess
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import memory_profiler


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("network", nargs="?", default="sample_cnn", help="default: sample_cnn")
    parser.add_argument("--batch-size", type=int, default=4, help="default: 4")
    parser.add_argument("--mode", choices=("plain", "recomputed"), help="run only this mode, in this process")
    arguments = parser.parse_args()
    if arguments.mode:
        profile(arguments.network, arguments.batch_size, arguments.mode)
        return
    for mode in ("plain", "recomputed"):
        print(f"== {arguments.network}, batch {arguments.batch_size}, {mode}", flush=True)
        again = [arguments.network, "--batch-size", str(arguments.batch_size), "--mode", mode]
        subprocess.run([sys.executable, __file__, *again], check=True)


def profile(network, batch_size, mode):
    import keras
    import tensorflow as tf

    import tfgc

    model = tfgc.zoo.build(network)
    if mode == "recomputed":
        tfgc.enable(model)
    optimizer = keras.optimizers.SGD(0.01)
    optimizer.build(model.trainable_variables)
    x = tf.random.stateless_normal((batch_size, *model.input_shape[1:]), (1, 2))
    y = tf.random.stateless_normal((batch_size, *model.output_shape[1:]), (3, 4))

    def step():
        with tf.GradientTape() as tape:
            prediction = model(x, training=True)
            loss = tf.reduce_mean((prediction - y) ** 2)
        gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    memory_profiler.profile(step, precision=1)()


if __name__ == "__main__":
    main()
