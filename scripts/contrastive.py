"""Losses over the whole batch: a batch eight times as large in the memory of the plain step, by slices of segments.

A SimCLR-like model (one encoder, two views of each image, each to be found among all) and a CLIP-like one (a tower for
images and one for texts). Gradient accumulation would compare each sample with those of its slice.

One process a case: the plain step of a batch, that of eight times the batch, and that by a plan with slices. Peaks are
those of TensorFlow's allocator above what is there between steps, the most of two steps after one to warm up. The
process of the slices then also computes the plain gradients of its batch. Times are not measured.

    python scripts/contrastive.py                  # all cases
    python scripts/contrastive.py clip-slices      # this one
    python scripts/contrastive.py --table          # print the saved results

Results are saved in scripts/results/contrastive.json.
"""

import saved_cases

BATCHES = {"simclr": 8, "clip": 16}
WAYS = {"plain": (1, False), "large": (8, False), "slices": (8, True)}
CASES = [f"{name}-{way}" for name in BATCHES for way in WAYS]
SLICES = 8
STEPS = 2
RESULTS = saved_cases.RESULTS / "contrastive.json"
HEAD = f"| model, batch | plain step | plain step, batch times 8 | the same, `slices={SLICES}` | gradients differ by |"


def table(saved):
    """The saved results in Markdown."""
    whole = [name for name in BATCHES if all(f"{name}-{way}" in saved for way in WAYS)]
    return "\n".join([HEAD, "| --- | --- | --- | --- | --- |", *(line(name, saved) for name in whole)])


def line(name, saved):
    """A row of the table."""
    plain, large, slices = (saved[f"{name}-{way}"] for way in WAYS)
    cells = [f"peak {case['peak'] / 1e6:.0f} MB, predicted {case['predicted'] / 1e6:.0f}" for case in (plain, large)]
    cells.append(f"{slices['peak'] / 1e6:.0f} MB, predicted {slices['predicted'] / 1e6:.0f}")
    return f"| {name}, {BATCHES[name]} | {' | '.join(cells)} | {slices['difference']:.0e} |"


def row(name, case):
    """A line for a case."""
    return f"{name}: {case}"


def measure(case):
    """The peak of a step and its prediction; with slices, how far its gradients are from the plain ones."""
    import tensorflow as tf

    import tfgc

    name, way = case.split("-")
    times, sliced = WAYS[way]
    batch = times * BATCHES[name]
    model, loss, x = built(name, batch)
    options = {"strategy": "optimal", "slices": SLICES} if sliced else {"strategy": "keep_all"}
    plan = tfgc.plan(model, batch, loss=loss, **options)
    predicted = tfgc.estimate(model, batch, plan, optimizer="sgd", loss=loss)
    step, y = tfgc.train_step(model, loss, "sgd", plan=plan), tf.zeros((batch, 1))
    peaks = [saved_cases.timed(step, x, y)[1] for _ in range(1 + STEPS)]
    found = {"peak": max(peaks[1:]), "predicted": predicted.needed_bytes - predicted.fixed_bytes}
    if sliced:
        found["difference"] = difference(gradients(name, batch), gradients(name, batch, plan))
    return found


def gradients(name, batch, plan=None):
    """Of the weights, at the first step."""
    import tensorflow as tf

    import tfgc

    model, loss, x = built(name, batch)
    if plan is not None:
        tfgc.enable(model, plan)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            value = loss(None, model(x, training=True))
        return [tf.convert_to_tensor(g) for g in tape.gradient(value, [v.value for v in model.trainable_variables])]

    return step(x)


def difference(first, second):
    """The largest distance of gradients, each as a part of its norm, of at least a thousandth of the largest one."""
    import numpy as np

    norms = [np.linalg.norm(one) for one in first]
    distances = [np.linalg.norm(one - other) for one, other in zip(first, second)]
    return max(float(d / max(norm, 1e-3 * max(norms))) for d, norm in zip(distances, norms))


def built(name, batch):
    """A model of one output, its loss, and a batch."""
    import keras
    import numpy as np
    import tensorflow as tf

    from tfgc import zoo
    from tfgc.zoo.gpt import gpt
    from tfgc.zoo.vit import vit

    keras.backend.clear_session()  # So that the layers of a second model have the same names.
    keras.utils.set_random_seed(0)
    draw, layers = np.random.default_rng(0), keras.layers
    if name == "simclr":
        encoder = zoo.build("big_cnn", 64)
        made = layers.Dense(64)(layers.Dropout(0.1)(encoder.layers[-2].output))
        views = draw.normal(size=(batch, *encoder.input_shape[1:]))  # The second ones in the second half.
        return keras.Model(encoder.input, layers.UnitNormalization()(made)), of_views, tf.constant(views, "float32")
    images, texts = vit(4, 192, 64, 8), gpt(4, 192, 32, 4096)
    seen = layers.UnitNormalization()(layers.Dense(64)(images.layers[-2].output))
    read = layers.GlobalAveragePooling1D()(texts.layers[-1].output)
    read = layers.UnitNormalization()(layers.Dense(64)(read))
    x = draw.normal(size=(batch, 64, 64, 3)), draw.integers(0, 4096, (batch, 32))
    model = keras.Model([images.input, texts.input], layers.Concatenate()([seen, read]))
    return model, of_pairs, (tf.constant(x[0], "float32"), tf.constant(x[1], "int32"))


def of_views(_, made):
    """Each view is to find the other one of its image."""
    from keras import ops

    n = ops.shape(made)[0]
    scores = ops.matmul(made, ops.transpose(made)) / 0.1 - 1e4 * ops.eye(n)
    return ops.mean(ops.sparse_categorical_crossentropy((ops.arange(n) + n // 2) % n, scores, from_logits=True))


def of_pairs(_, made):
    """Each image is to find its text, and each text its image."""
    from keras import ops

    seen, read = ops.split(made, 2, axis=-1)
    scores, own = 10 * ops.matmul(seen, ops.transpose(read)), ops.arange(ops.shape(made)[0])
    ways = [ops.sparse_categorical_crossentropy(own, s, from_logits=True) for s in (scores, ops.transpose(scores))]
    return ops.mean(ways[0] + ways[1]) / 2


if __name__ == "__main__":
    saved_cases.main(__file__, __doc__, CASES, RESULTS, measure, row, table)
