"""Trains on two logical CPU devices under MirroredStrategy, plainly and with tfgc, and prints how far apart they end.

A program of its own, since logical devices must be set before TensorFlow starts.
"""

import json
import os
import sys
import warnings

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf
from equality import fresh
from replays import note_replays

import tfgc

STEPS, BATCH = 3, 16


class Scale(keras.layers.Layer):
    """Holds a plain `tf.Variable`, of which every replica has a copy that no Keras variable leads to."""

    def build(self, shape):
        self.factor = tf.Variable(tf.ones(shape[-1]), aggregation=tf.VariableAggregation.SUM)

    def call(self, x):
        return x * self.factor


def network(*extra, **options):
    """What a second run could spoil; no bias before a normalization, since its gradient is rounding alone."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            layers.Conv2D(4, 3, padding="same", activity_regularizer="l2", use_bias=False),
            layers.BatchNormalization(**options),
            layers.ReLU(),
            layers.Dropout(0.3),
            *[layer() for layer in extra],
            layers.Conv2D(4, 3, padding="same", use_bias=False),
            layers.BatchNormalization(**options),
            layers.SpatialDropout2D(0.3),
            layers.Flatten(),
            layers.Dense(5, dtype="float32"),
        ]
    )


def scaled():
    return network(Scale)


def synchronized():
    return network(synchronized=True)


def branching():
    """Branches whose replays wait for one another, on each device by itself."""
    layers = keras.layers
    inputs = keras.Input((8, 8, 3))
    sides = [
        keras.Sequential([layers.Conv2D(4, 3, activation="relu"), layers.Dropout(0.3)], name=f"side_{i}")(inputs)
        for i in range(3)
    ]
    return keras.Model(inputs, layers.Dense(5)(layers.Flatten()(layers.Add()(sides))))


class Called(keras.Model):
    """Has no graph: planned by its calls. Its block keeps much more than it reads."""

    def __init__(self):
        super().__init__()
        layers = keras.layers
        wide = [layers.Conv2D(64, 3, padding="same", activation="gelu"), layers.Conv2D(3, 3, padding="same")]
        self.wide, self.drop, self.head = keras.Sequential(wide), layers.Dropout(0.3), layers.Dense(5)
        self.flat, self.blocks = layers.Flatten(), [layers.Conv2D(3, 1, activation="tanh") for _ in range(2)]

    def call(self, x, training=None):
        for block in self.blocks:
            x = x + block(x) + self.drop(self.wide(x, training=training), training=training)
        return self.head(self.flat(x))


def at_first(model):
    """Plan when the first replica calls the model."""
    tfgc.enable(model, verbose=0, **({} if isinstance(model, Called) else {"strategy": "uniform", "segments": 3}))


def plan(model):
    return tfgc.plan(model, strategy="uniform", segments=3)


def enabled(model):
    tfgc.enable(model, plan(model))


def uncompiled(model):
    tfgc.enable(model, plan(model))


def chosen(model):
    tfgc.enable(model, layers="side_*")


def nested(model):
    names = [node for segment in plan(model).segments for node in segment.nodes]
    halves = tuple(tfgc.Segment(tuple(half)) for half in (names[:4], names[4:-1]))
    outer = tfgc.Segment(tuple(names[:-1]), inner=tfgc.Plan(halves, "by hand", ()))
    segments = (outer, tfgc.Segment((names[-1],), mode="keep"))
    tfgc.enable(model, tfgc.Plan(segments, "by hand", plan(model).model))


def recomputed(model):
    model.call = tfgc.recompute(model.call)


def naive(model):
    """Draws other masks in its second run, which the comparison must see."""
    run = model.call
    model.call = lambda x, training=None, mask=None: tf.recompute_grad(lambda t: run(t, training=training))(x)


# Name: network, policy, loop of the plain run, loop with tfgc, what tfgc is told.
CASES = {
    "uncompiled": (network, "float32", "eager", "eager", uncompiled),
    "compiled": (network, "float32", "graph", "eager", enabled),
    "compiled, plain variable": (scaled, "float32", "graph", "eager", enabled),
    "graph": (network, "float32", "graph", "graph", enabled),
    "graph, float16": (network, "mixed_float16", "graph", "graph", enabled),
    "graph, nested": (network, "float32", "graph", "graph", nested),
    "graph, layers": (branching, "float32", "graph", "graph", chosen),
    "graph, recompute": (network, "float32", "graph", "graph", recomputed),
    "recompute, plain variable": (scaled, "float32", "graph", "eager", recomputed),
    "recompute, synchronized": (synchronized, "float32", "graph", "graph", recomputed),
    "fit": (network, "float32", "fit", "fit", enabled),
    "fit, planned at the first call": (network, "float32", "fit", "fit", at_first),
    "fit, planned by calls": (Called, "float32", "fit", "fit", at_first),
    "fit, run_eagerly": (network, "float32", "fit", "fit eagerly", enabled),
    "train_step": (network, "float32", "graph", "train_step", None),
    "train_step, run_eagerly": (network, "float32", "graph", "train_step eagerly", None),
    "synchronized": (synchronized, "float32", "graph", "graph", enabled),
    "naive": (network, "float32", "graph", "graph", naive),
}


def train(strategy, build, loop, change=None):
    """Weights, other variables and losses after some steps, with the copies of every replica."""
    random = np.random.default_rng(0)
    x, y = (random.standard_normal((STEPS * BATCH, *shape)).astype("float32") for shape in ((8, 8, 3), (5,)))

    def in_scope():
        with strategy.scope():
            return build()

    model = fresh(in_scope)
    with strategy.scope():
        if not model.built:
            model(x[:1])
        before = _values(strategy, model.trainable_variables)
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
        if keras.config.dtype_policy().name == "mixed_float16":
            # From Keras's own 2 ** 15 the first steps overflow, and would be skipped.
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=2.0**8)
        optimizer.build(model.trainable_variables)
        if change is not None:
            change(model)
        if loop.startswith("fit"):
            model.compile(optimizer, "mse", run_eagerly=loop == "fit eagerly")
        if loop.startswith("train_step"):
            eagerly = loop == "train_step eagerly"
            own = tfgc.train_step(model, "mse", optimizer, plan=plan(model), run_eagerly=eagerly)
    plain = [layer.factor for layer in model.layers if isinstance(layer, Scale)]
    if loop.startswith("fit"):
        losses = model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0).history["loss"]
    else:
        if loop.startswith("train_step"):

            def run(x, y):
                return strategy.reduce("SUM", strategy.run(own, args=(x, y))["loss"], axis=None)

        else:
            step = _step(strategy, model, optimizer, plain)

            def run(x, y):
                return strategy.reduce("MEAN", strategy.run(step, args=(x, y)), axis=None)

        if loop == "graph":
            run = tf.function(run)
        batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)
        losses = [float(run(*batch)) for batch in strategy.experimental_distribute_dataset(batches)]
    weights = _values(strategy, model.trainable_variables)
    return {
        "weights": weights + [part.numpy() for v in plain for part in strategy.experimental_local_results(v)],
        "states": _values(strategy, [*model.non_trainable_variables, *optimizer.variables]),
        "losses": [np.array(value) for value in losses],
    }, _moved(before, weights)


def _step(strategy, model, optimizer, plain):
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
            loss = tf.add_n([loss, *(tf.cast(extra, loss.dtype) for extra in model.losses)])
            scaled = optimizer.scale_loss(loss / strategy.num_replicas_in_sync)
        variables = model.trainable_variables
        gradients = tape.gradient(scaled, [*(v.value for v in variables), *plain])
        optimizer.apply_gradients(zip(gradients, variables))
        for variable, gradient in zip(plain, gradients[len(variables) :]):
            variable.assign_sub(0.1 * gradient)
        return loss

    return step


def _values(strategy, variables):
    return [part.numpy() for v in variables for part in strategy.experimental_local_results(v.value)]


def _apart(some, others):
    """The largest distance of two arrays, relative to the norm of the first; seeds and counters are equal or not."""
    distances = [0.0]
    for a, b in zip(some, others, strict=True):
        if np.issubdtype(a.dtype, np.integer):
            distances.append(0.0 if np.array_equal(a, b) else np.inf)
            continue
        a, b = a.astype("float64"), b.astype("float64")
        distances.append(np.linalg.norm(a - b) / max(np.linalg.norm(a), 1e-6))
    return float(np.max(distances))


def _moved(before, after):
    """How far all weights together went, relative to where they began: nothing is equal that never moved."""
    flat = [np.concatenate([a.ravel() for a in arrays]) for arrays in (before, after)]
    return _apart(flat[:1], flat[1:])


def main(names):
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    replays = []
    note_replays(replays.append)
    known, found = {}, {}
    for name in names or CASES:
        build, policy, *loops, change = CASES[name]
        keras.config.set_dtype_policy(policy)
        key = (build, policy, loops[0])
        if key not in known:
            known[key] = train(strategy, build, loops[0])
        plain, moved = known[key]
        replays.clear()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", tfgc.NotReplayableWarning)
            ours, _ = train(strategy, build, loops[1], change)
        found[name] = {kind: _apart(plain[kind], ours[kind]) for kind in plain}
        found[name] |= {"moved": moved, "replays": len(replays), "warnings": [str(w.message) for w in caught]}
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
