"""Other ways to recompute, applied as their documentation says: steps of one network in one process each.

`recompute_grad`: the model split by hand into eight parts, each but the last under `tf.recompute_grad`.
`RematScope ...`: the model built under `keras.RematScope` in that mode. After all is measured, what the first step did
to weights and states is compared with plain steps: in both modes, and with weights that are one rounding off.
"""

import contextlib
import functools
import statistics
import time

import keras
import numpy as np
import tensorflow as tf

import tfgc

_PARTS = 8
# Keras's default of 1024 elements takes in nearly every layer of an image network; a million leaves the small ones.
_LARGE = 2**20
REMAT = {
    "RematScope full": {"mode": "full"},
    "RematScope activations": {"mode": "activations"},
    "RematScope larger_than": {"mode": "larger_than", "output_size_threshold": _LARGE},
    "RematScope list_of_layers": {"mode": "list_of_layers"},
}


def measure(network, image_size, batch_size, way, mode, steps):
    """Train for a step and `steps` counted ones; the figures of the case, and which parts of an update are wrong."""
    build = functools.partial(_built, network, image_size)
    model, step = _training(build, batch_size, way, mode)
    before, update, found = _snapshot(model), None, []
    for _ in range(steps + 1):
        tf.config.experimental.reset_memory_stats("CPU:0")
        held, begin = tf.config.experimental.get_memory_info("CPU:0")["current"], time.perf_counter()
        step()
        spent = time.perf_counter() - begin
        found.append((tf.config.experimental.get_memory_info("CPU:0")["peak"] - held, spent))
        update = update or _difference(_snapshot(model), before)
    peaks, seconds = zip(*found[1:])
    references = []
    for reference, nudge in (("graph", 0.0), ("eager", 0.0), ("graph", 2.0**-23)):
        plain, step = _training(build, batch_size, "plain", reference)
        for variable in plain.trainable_variables:
            wave = np.cos(np.arange(np.prod(variable.shape))).reshape(variable.shape)
            variable.assign(variable.numpy() * (1 + nudge * wave))
        before = _snapshot(plain)
        step()
        references.append(_difference(_snapshot(plain), before))
    wrong = differing_parts(update, references, [variable.path for variable in model.trainable_variables])
    return {
        "status": "ok", "peak": int(statistics.median(peaks)), "seconds": statistics.median(seconds), "wrong": wrong,
    }  # fmt: skip


def _built(network, image_size):
    keras.utils.set_random_seed(0)
    return tfgc.zoo.build(network, image_size)


def _training(build, batch_size, way, mode):
    """A model, and a function that trains it for a step on noise, by one of the ways to recompute."""
    keras.utils.clear_session()
    with build_scope(way, build):
        model = build()
    call = wrap_call(way, model)
    if way == "optimal":
        tfgc.enable(model, tfgc.plan(model, batch_size, strategy="optimal"))
    random = np.random.default_rng(0)
    x = tf.constant(random.standard_normal((batch_size, *model.input_shape[1:])), "float32")
    if model.inputs[0].dtype == "int32":
        x = tf.constant(random.integers(0, 50, (batch_size, *model.input_shape[1:])), "int32")
    y = tf.constant(random.standard_normal((batch_size, *model.output_shape[1:])), "float32")
    optimizer = keras.optimizers.SGD(0.01)
    optimizer.build(model.trainable_variables)

    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(call(x, training=True) - y))
        gradients = tape.gradient(loss, [variable.value for variable in model.trainable_variables])
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    run = tf.function(step, autograph=False) if mode == "graph" else step
    return model, lambda: float(run())


def build_scope(way, build):
    """The scope to build a model under. One that takes names of layers gets those with weights in `build()`."""
    if way not in REMAT:
        return contextlib.nullcontext()
    settings = dict(REMAT[way])
    if settings["mode"] == "list_of_layers":
        settings["layer_names"] = [layer.name for layer in build().layers if layer.weights]
        keras.utils.clear_session()
    return keras.RematScope(**settings)


def wrap_call(way, model):
    """What a training step calls instead of `model`."""
    if way != "recompute_grad":
        return model
    parts = tfgc.split(model, _PARTS)

    def run(part, structure, training, *tensors):
        return part(tf.nest.pack_sequence_as(structure, tensors), training=training)

    def call(x, training=None):
        for part in parts[:-1]:
            x = tf.recompute_grad(functools.partial(run, part, x, training))(*tf.nest.flatten(x))
        return parts[-1](x, training=training)

    return call


def _snapshot(model):
    """Every variable's value, seeds included, by its path."""
    return {variable.path: variable.numpy().astype("float64") for variable in model.variables}


def _difference(after, before):
    return {path: value - before[path] for path, value in after.items()}


def differing_parts(update, references, weights):
    """Which parts of the first update differ from every plain run: `gradients`, `states`, or none.

    An update is what the step added to each variable, by path. Rounding is allowed for: 0.1 %, or twice the largest
    difference among `references`, plain steps that differ by rounding alone. `weights` are the paths that are trained.
    """
    found = []
    for what, paths in (("gradients", weights), ("states", [path for path in update if path not in weights])):
        if not paths:
            continue
        spread = max(difference(references[0], other, paths) for other in references)
        # So written, NaN differs.
        if not any(difference(one, update, paths) <= max(1e-3, 2 * spread) for one in references):
            found.append(what)
    return found


def difference(expected, given, paths):
    """The norm of the difference over the norm of what is expected."""
    one, other = (np.concatenate([np.ravel(update[path]) for path in paths]) for update in (expected, given))
    scale = np.linalg.norm(one)
    return float(np.linalg.norm(other - one) / scale) if scale else float(np.linalg.norm(other) > 0)
