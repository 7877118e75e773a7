"""A training step plain and by tfgc: memory, time and losses, in turn.

    python scripts/rewritten.py ResNet50:128:16 transformer_encoder::8 --rounds 9
    python scripts/rewritten.py --ways plain-eager loop-eager    # of the ways below
    python scripts/rewritten.py --simulate                       # all networks: trace and plan, and run nothing

"plain" and "plain-eager" run without tfgc, "rewritten" is `tfgc.function`, "loop" and "loop-eager" an enabled model in
a loop of one's own. Each is compared with the plain step in the same mode.

NETWORK:SIZE:BATCH is a name that the shell takes too or one of those here, an image size if it takes one, and samples.
Each network has a process of its own, one after the other. Each way trains a model of its own, from the same weights,
by SGD on a squared error in a tf.function. Peaks are the allocator's above what is held before a step; on a machine
with other work they and times are indications. `--off` turns TensorFlow's graph optimizer off, where the rewritten step
has the bits of the plain one.

`--simulate` prints simulated peaks without weights, work as a share of that of the plain step, and seconds of the
processor for tracing and for planning: of the least peak, and of half of the room between that and the plain step.
"""

import argparse
import statistics
import subprocess
import sys
import time

CASES = (
    "ResNet50:128:16", "DenseNet121:128:8", "EfficientNetB0:128:8", "MobileNetV2:128:16", "InceptionV3:139:8",
    "Xception:128:8", "vit::8", "transformer_encoder::8", "gpt(4, 256, 256, 8192)::8", "unet::4", "sample_cnn::8",
    "bidirectional_lstm::32", "subclassed_transformer::8", "heads::64", "NASNetMobile:128:8",
)  # fmt: skip


WAYS = ("plain", "rewritten", "loop", "plain-eager", "loop-eager")


def subclassed_transformer():
    import keras

    class Block(keras.layers.Layer):
        def __init__(self, width):
            super().__init__()
            self.attention = keras.layers.MultiHeadAttention(4, width // 4)
            self.norms = [keras.layers.LayerNormalization() for _ in range(2)]
            self.wide, self.narrow = keras.layers.Dense(4 * width, "gelu"), keras.layers.Dense(width)

        def call(self, x):
            y = self.norms[0](x)
            x = x + self.attention(y, y)
            return x + self.narrow(self.wide(self.norms[1](x)))

    class Encoder(keras.Model):
        def __init__(self, width=192, blocks=6):
            super().__init__()
            self.embedding, self.blocks = keras.layers.Embedding(1000, width), [Block(width) for _ in range(blocks)]
            self.head = keras.layers.Dense(1000)

        def call(self, x):
            x = self.embedding(x)
            for block in self.blocks:
                x = block(x)
            return self.head(x)

    model = Encoder()
    model.specs = [keras.KerasTensor((None, 128), "int32")]
    model(keras.ops.zeros((1, 128), "int32"))
    return model


def heads(count=12):
    import keras

    x = inputs = keras.Input((512,))
    outputs = []
    for _ in range(count):
        for _ in range(3):
            x = keras.layers.Dense(512, "gelu")(x)
        outputs.append(keras.layers.Dense(64)(keras.layers.Dense(256, "gelu")(x)))
    return keras.Model(inputs, outputs)


OWN = {"subclassed_transformer": subclassed_transformer, "heads": heads}


def build(name, size):
    import keras

    import tfgc

    keras.utils.clear_session()
    keras.utils.set_random_seed(1)
    return OWN[name]() if name in OWN else tfgc.zoo.build(name, int(size) if size else None)


def batch(model, count):
    import numpy as np
    import tensorflow as tf

    draws = np.random.default_rng(0)

    def tensor(spec):
        shape = (count, *(size or 64 for size in spec.shape[1:]))
        made = draws.random(shape) if "float" in spec.dtype else draws.integers(0, 20, shape)
        return tf.constant(made, spec.dtype)

    x = [tensor(spec) for spec in getattr(model, "specs", None) or model.inputs]
    return x if len(x) > 1 else x[0]


def step_of(model):
    import keras
    import tensorflow as tf

    optimizer = keras.optimizers.SGD(0.01)
    optimizer.build(model.trainable_variables)

    def step(x):
        with tf.GradientTape() as tape:
            outputs = tf.nest.flatten(model(x, training=True))
            loss = tf.add_n([tf.reduce_mean((tf.cast(o, tf.float32) - 1.0) ** 2) for o in outputs])
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    return step


def enabled(model):
    import tfgc

    return step_of(tfgc.enable(model, verbose=0))


def made(way, model):
    import tensorflow as tf

    import tfgc

    if way == "rewritten":
        return tfgc.function(step_of(model))
    step = step_of(model) if way.startswith("plain") else enabled(model)
    return step if way.endswith("eager") else tf.function(step)


def measured(name, size, count, rounds, ways):
    import tfgc

    x, runs, first, losses = None, {}, {}, {}
    for way in ways:
        model = build(name, size)
        x = batch(model, count) if x is None else x
        begin = time.perf_counter()
        runs[way] = made(way, model)
        losses[way] = [float(runs[way](x))]
        first[way] = time.perf_counter() - begin
    seconds, peaks = ({way: [] for way in runs} for _ in range(2))
    for _ in range(rounds):
        for way, run in runs.items():
            with tfgc.peak() as peak:
                begin = time.perf_counter()
                losses[way].append(float(run(x)))
                seconds[way].append(time.perf_counter() - begin)
            peaks[way].append(peak.peak_bytes - peak.held_bytes)
    for way in runs:
        base = "plain-eager" if way.endswith("eager") else "plain"
        base = base if base in runs else way
        ratios = [a / b for a, b in zip(seconds[way], seconds[base])]
        apart = max(abs(a - b) / abs(b) for a, b in zip(losses[way], losses[base]))
        print(
            f"  {way:12} {statistics.median(peaks[way]) / 1e6:8.1f} MB, x {statistics.median(ratios):.3f} "
            f"({min(ratios):.2f} to {max(ratios):.2f}), first step {first[way]:.1f} s, losses apart by {apart:.1e}"
        )


def simulated(name, size, count):
    import tensorflow as tf

    from tfgc._planning.step_plans import StepPlans
    from tfgc._step.trace import trace

    model = build(name, size)
    x = batch(model, count)
    step, traced = _timed(lambda: trace(tf.function(step_of(model)), x).step)
    plans = StepPlans(step)
    least, planned = _timed(plans.least)
    half, halved = _timed(lambda: plans.within((least.peak_bytes + least.plain_bytes) // 2))
    _show("plain", least.plain_bytes, 0, f"traced in {traced:.1f} s")
    _show("rewritten", least.peak_bytes, least.overhead, f"planned in {planned:.1f} s {least.unchanged}")
    _show("half the room", half.peak_bytes, half.overhead, f"planned in {halved:.1f} s {half.unchanged}")


def _timed(call):
    begin = time.process_time()
    return call(), time.process_time() - begin


def _show(way, peak_bytes, more, note):
    print(f"  {way:14} {peak_bytes / 1e6:8.1f} MB, work x {1 + more:.3f}, {note}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", metavar="NETWORK:SIZE:BATCH", default=CASES)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--off", action="store_true", help="turn TensorFlow's graph optimizer off")
    parser.add_argument("--simulate", action="store_true", help="trace and plan, and run nothing")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.case is None:
        for case in given.networks:
            print(case, flush=True)
            subprocess.run([sys.executable, __file__, *sys.argv[1:], "--case", case], check=False)
        return
    name, size, count = given.case.rsplit(":", 2)
    if given.off:
        import tensorflow as tf

        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    if given.simulate:
        simulated(name, size, int(count))
    else:
        measured(name, size, int(count), given.rounds, given.ways)


if __name__ == "__main__":
    main()
