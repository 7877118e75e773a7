"""Losses over the whole batch: a batch eight times as large in the memory of the plain step, by slices of the towers.

A SimCLR-like model (one encoder, two views of each image, each to be found among all) and a CLIP-like one (a tower for
images and one for texts), without Dropout. Gradient accumulation would compare each sample with those of its slice.
Here each tower runs in `tfgc.recompute(tower, slices=8)`, and the loss sees the whole batch.

One process a case: the plain step of a batch, that of eight times the batch, and that with slices, each in an eager
loop and in a `tf.function`. Peaks are those of TensorFlow's allocator above what is there between steps, the most of
two steps after one to warm up. Times, the least of both, are saved, and not shown: other programs may run beside. The
process of the slices then also computes the plain gradients.

    python scripts/contrastive.py                        # all cases
    python scripts/contrastive.py clip-slices-graph      # this one
    python scripts/contrastive.py --table                # print the saved results

Results are saved in scripts/results/contrastive.json.
"""

import saved_cases

BATCHES = {"simclr": 8, "clip": 16}
WAYS = {"plain": (1, False), "large": (8, False), "slices": (8, True)}
MODES = {"eager": "eager loop", "graph": "`tf.function`"}
CASES = [f"{name}-{way}-{mode}" for name in BATCHES for mode in MODES for way in WAYS]
SLICES = 8
STEPS = 2
RESULTS = saved_cases.RESULTS / "contrastive.json"
HEAD = f"| model, batch | plain step | plain step, batch times 8 | the same, `slices={SLICES}` | gradients differ by |"


def table(saved):
    """The saved results in Markdown."""
    whole = [(n, m) for n in BATCHES for m in MODES if all(f"{n}-{way}-{m}" in saved for way in WAYS)]
    return "\n".join([HEAD, "| --- | --- | --- | --- | --- |", *(line(*each, saved) for each in whole)])


def line(name, mode, saved):
    """A row of the table."""
    cases = [saved[f"{name}-{way}-{mode}"] for way in WAYS]
    cells = [f"{case['peak'] / 1e6:.0f} MB" for case in cases]
    return f"| {name}, {BATCHES[name]}, {MODES[mode]} | {' | '.join(cells)} | {cases[-1]['difference']:.0e} |"


def row(name, case):
    """A line for a case."""
    return f"{name}: {case}"


def measure(case):
    """The peak and the time of a step; with slices, how far its gradients are from the plain ones."""
    import tensorflow as tf

    import tfgc

    name, way, mode = case.split("-")
    times, sliced = WAYS[way]
    towers, loss, inputs = built(name, times * BATCHES[name])
    weights = [v.value for tower in towers for v in tower.trainable_variables]

    def gradients_by(towers):
        def gradients(*inputs):
            with tf.GradientTape() as tape:
                value = loss(*(tower(x, training=False) for tower, x in zip(towers, inputs)))
            return [tf.convert_to_tensor(g) for g in tape.gradient(value, weights)]

        return tf.function(gradients) if mode == "graph" else gradients

    def step(gradients):
        for weight, gradient in zip(weights, gradients(*inputs)):
            weight.assign_sub(1e-3 * gradient)

    plain = gradients_by(towers)
    ours = gradients_by([tfgc.recompute(tower, slices=SLICES) for tower in towers]) if sliced else plain
    runs = [saved_cases.timed(step, ours) for _ in range(1 + STEPS)][1:]
    found = {"peak": max(peak for _, peak in runs), "seconds": min(seconds for seconds, _ in runs)}
    if sliced:
        found["difference"] = difference(plain(*inputs), ours(*inputs))
    return found


def difference(first, second):
    """The largest distance of gradients, each as a part of its norm, of at least a thousandth of the largest one."""
    import numpy as np

    norms = [np.linalg.norm(one) for one in first]
    distances = [np.linalg.norm(one - other) for one, other in zip(first, second)]
    return max(float(d / max(norm, 1e-3 * max(norms))) for d, norm in zip(distances, norms))


def built(name, batch):
    """Towers, a loss of what they make, and a batch for each."""
    import keras
    import numpy as np
    import tensorflow as tf

    from tfgc import zoo
    from tfgc.zoo.gpt import gpt
    from tfgc.zoo.vit import vit

    keras.utils.set_random_seed(0)
    draw, layers = np.random.default_rng(0), keras.layers

    def tower(model, made):
        return keras.Model(model.input, layers.UnitNormalization()(layers.Dense(64)(made)))

    if name == "simclr":
        encoder = zoo.build("big_cnn", 64)
        views = draw.normal(size=(batch, *encoder.input_shape[1:]))  # The second ones in the second half.
        return [tower(encoder, encoder.layers[-2].output)], of_views, [tf.constant(views, "float32")]
    images, texts = vit(4, 192, 64, 8), gpt(4, 192, 32, 4096)
    towers = [tower(images, images.layers[-2].output)]
    towers.append(tower(texts, layers.GlobalAveragePooling1D()(texts.layers[-1].output)))
    x = draw.normal(size=(batch, 64, 64, 3)), draw.integers(0, 4096, (batch, 32))
    return towers, of_pairs, [tf.constant(x[0], "float32"), tf.constant(x[1], "int32")]


def of_views(made):
    """Each view is to find the other one of its image."""
    from keras import ops

    n = ops.shape(made)[0]
    scores = ops.matmul(made, ops.transpose(made)) / 0.1 - 1e4 * ops.eye(n)
    return ops.mean(ops.sparse_categorical_crossentropy((ops.arange(n) + n // 2) % n, scores, from_logits=True))


def of_pairs(seen, read):
    """Each image is to find its text, and each text its image."""
    from keras import ops

    scores, own = 10 * ops.matmul(seen, ops.transpose(read)), ops.arange(ops.shape(seen)[0])
    ways = [ops.sparse_categorical_crossentropy(own, s, from_logits=True) for s in (scores, ops.transpose(scores))]
    return ops.mean(ways[0] + ways[1]) / 2


if __name__ == "__main__":
    saved_cases.main(__file__, __doc__, CASES, RESULTS, measure, row, table)
