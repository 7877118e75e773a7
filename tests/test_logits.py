"""Keras's crossentropies look behind probabilities for their logits: losses and gradients are those of plain training.

Keras takes `output._keras_logits`, else the input of the Softmax or Sigmoid operation that made `output`. The logits
here are so large that probabilities clipped at 1e-7 give another loss.
"""

import dataclasses
import functools
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf
from equality import assert_equal, fresh, in_turn, noise, plain_steps, train

import tfgc

L = keras.layers

X = np.random.RandomState(0).normal(size=(8, 6)).astype("float32")
TARGETS = {"softmax": np.arange(8) % 3, "sigmoid": (np.arange(24).reshape(8, 3) % 2).astype("float32")}
LOSSES = {"softmax": "sparse_categorical_crossentropy", "sigmoid": "binary_crossentropy"}
MODES = ["eager", "compiled", "graph", "xla"]
BASELINE = {"eager": "eager", "compiled": "graph", "graph": "graph", "xla": "xla"}
KINDS = ["softmax", "sigmoid"]


class Ends(keras.layers.Layer):
    """A custom layer whose `call` ends with `end`."""

    def __init__(self, end, **kwargs):
        super().__init__(**kwargs)
        self.dense = keras.layers.Dense(3)
        self.end = end

    def call(self, x):
        return self.end(self.dense(x))


class Subclassed(keras.Model):
    def __init__(self, kind):
        super().__init__()
        self.hidden = keras.layers.Dense(16, "tanh")
        self.head = keras.layers.Dense(3, kind)

    def call(self, x, training=None):
        return self.head(self.hidden(x))


class EndsWithLoss(keras.layers.Layer):
    """Adds the crossentropy of what it gets, as an endpoint layer does."""

    def __init__(self, kind, **kwargs):
        super().__init__(**kwargs)
        self.kind = kind

    def call(self, x):
        target = keras.ops.zeros_like(x if self.kind == "sigmoid" else x[:, 0])
        self.add_loss(keras.ops.mean(keras.losses.get(LOSSES[self.kind])(target, x)))
        return x


def functional(head):
    inputs = keras.Input((6,))
    x = keras.layers.Dense(16, "tanh")(inputs)
    x = keras.layers.Dense(16, "tanh")(x)
    return keras.Model(inputs, head(x))


def nested(kind):
    hidden = keras.Input((16,))
    inner = keras.Model(hidden, keras.layers.Dense(3, kind)(hidden))
    return functional(inner)


def nested_masked(kind):
    """A nested model that stays one node, since it is called on masked inputs."""
    hidden = keras.Input((None, 16))
    inner = keras.Model(hidden, keras.layers.Dense(3, kind)(keras.layers.GRU(16)(hidden)))
    inputs = keras.Input((6,))
    tokens = keras.layers.Embedding(9, 16, mask_zero=True)(keras.ops.cast(inputs > 0, "int32"))
    return keras.Model(inputs, inner(tokens))


def mixed(kind):
    keras.config.set_dtype_policy("mixed_float16")
    try:
        return functional(lambda x: keras.layers.Activation(kind, dtype="float32")(keras.layers.Dense(3)(x)))
    finally:
        keras.config.set_dtype_policy("float32")


def raw(kind):
    return getattr(tf.nn, kind)


HEADS = {
    "argument": lambda kind: functional(keras.layers.Dense(3, kind)),
    "layer": lambda kind: functional(lambda x: keras.layers.Activation(kind)(keras.layers.Dense(3)(x))),
    "ops": lambda kind: functional(lambda x: getattr(keras.ops, kind)(keras.layers.Dense(3)(x))),
    "activations": lambda kind: functional(lambda x: getattr(keras.activations, kind)(keras.layers.Dense(3)(x))),
    "custom layer": lambda kind: functional(Ends(getattr(keras.activations, kind))),
    "custom layer with tf.nn": lambda kind: functional(Ends(raw(kind))),
    "lambda": lambda kind: functional(lambda x: keras.layers.Lambda(raw(kind))(keras.layers.Dense(3)(x))),
    "nested model": nested,
    "masked nested model": nested_masked,
    "mixed precision": mixed,
    "reshaped": lambda kind: functional(lambda x: keras.layers.Reshape((3,))(keras.layers.Dense(3, kind)(x))),
    "dropped out": lambda kind: functional(lambda x: keras.layers.Dropout(0.0)(keras.layers.Dense(3, kind)(x))),
    "endpoint layer": lambda kind: functional(lambda x: EndsWithLoss(kind)(keras.layers.Dense(3, kind)(x))),
    "endpoint layer after tf.nn": lambda kind: functional(lambda x: EndsWithLoss(kind)(Ends(raw(kind))(x))),
}


def built(head, kind):
    keras.utils.set_random_seed(3)
    model = head(kind)
    model(X)
    for weight in model.trainable_weights[-2:]:  # probabilities that are 0 and 1 in float32
        weight.assign(weight * 60.0 + 1.0)
    return model


def crossentropy(kind):
    one = keras.losses.get(LOSSES[kind])
    return lambda outputs: keras.ops.mean(one(TARGETS[kind], outputs))


def trained(call, model, loss, mode, steps=1):
    """The loss and the gradients of some steps, as a loop of the user's takes them."""
    variables = [v.value for v in model.trainable_variables]

    def step():
        with tf.GradientTape() as tape:
            value = loss(call(X, training=True))
            value = tf.add_n([value, *(tf.cast(extra, value.dtype) for extra in model.losses)])
        return value, tape.gradient(value, variables)

    if mode in ("graph", "xla"):
        step = tf.function(step, jit_compile=mode == "xla", autograph=False)
    found = []
    for _ in range(steps):
        value, gradients = step()
        found.append((float(value), [tf.convert_to_tensor(g).numpy() for g in gradients]))
        for variable, gradient in zip(variables, gradients):
            variable.assign_sub(0.01 * tf.cast(tf.convert_to_tensor(gradient), variable.dtype))
    return found


def check(plain, ours, tolerance=1e-5):
    for (expected, before), (given, after) in zip(plain, ours):
        assert given == pytest.approx(expected, rel=tolerance)
        largest = max(np.linalg.norm(g) for g in before)
        assert largest > 0
        for one, other in zip(before, after):
            assert np.linalg.norm(one - other) <= tolerance * max(np.linalg.norm(one), 1e-3 * largest)


def recomputed(model, segments=2):
    """A plan that recomputes every segment, the last one too."""
    plan = tfgc.plan(model, strategy="uniform", segments=segments)
    return dataclasses.replace(plan, segments=tuple(dataclasses.replace(s, mode="recompute") for s in plan.segments))


WAYS = {
    "enable": lambda model, mode: tfgc.enable(model, recomputed(model)),
    "last kept": lambda model, mode: tfgc.enable(model, tfgc.plan(model, strategy="uniform", segments=2)),
    "layers": lambda model, mode: tfgc.enable(model, layers=model.layers[1:]),
    "recompute": lambda model, mode: tfgc.recompute(model),
}
SOFT = {"mixed precision": 5e-3}


def slow(*row):
    return pytest.param(*row, marks=pytest.mark.slow)


def gate(*row):
    return pytest.param(*row, marks=pytest.mark.gate)


def rows():
    """By `enable` every head in one mode and one in all; by other ways that one, under XLA two in the gate; or slow."""
    for head in HEADS:
        for kind in KINDS:
            for mode in MODES:
                for way in WAYS:
                    usual = way == "enable" and mode != "xla" and (kind == "softmax" or head == "argument")
                    usual = usual and (head == "argument" or mode == ("compiled", "graph")[list(HEADS).index(head) % 2])
                    two = kind == "softmax" and mode != "eager"
                    two = two and (head == "argument" or (head == "custom layer with tf.nn" and way == "enable"))
                    if usual or (two and mode != "xla"):
                        yield head, kind, mode, way
                    elif two and way in ("enable", "recompute"):
                        yield gate(head, kind, mode, way)
                    else:
                        yield slow(head, kind, mode, way)


@functools.cache
def plainly(head, kind, baseline):
    """A step of the plain model, with which several ways and modes are compared."""
    plain = built(head, kind)
    return trained(plain, plain, loss_of(head, kind), baseline)


def loss_of(head, kind):
    endpoint = head in (HEADS["endpoint layer"], HEADS["endpoint layer after tf.nn"])
    return (lambda outputs: 0.0 * tf.reduce_sum(outputs)) if endpoint else crossentropy(kind)


@pytest.mark.filterwarnings("ignore:Layer 'functional:UserWarning")  # Keras on models called on masked inputs
@pytest.mark.parametrize(("head", "kind", "mode", "way"), rows())
def test_losses_behind_probabilities(head, kind, mode, way):
    baseline, tolerance = BASELINE[mode], SOFT.get(head, 1e-5)
    apart = head == "endpoint layer after tf.nn" and way in ("layers", "recompute")
    if mode == "compiled" and (head in ("custom layer with tf.nn", "lambda") or apart):
        # What Keras reads off an operation exists in graphs alone, and a loop of compiled segments is an eager loop.
        # Probabilities of logits of about 60 move by 60 eps where a compiled segment rounds otherwise.
        baseline, tolerance = "eager", 1e-4
    model = built(HEADS[head], kind)
    ours = trained(WAYS[way](model, mode), model, loss_of(HEADS[head], kind), mode)
    check(plainly(HEADS[head], kind, baseline), ours, tolerance)


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_is_another_one_where_logits_are_hidden(kind):
    """The models above would show it."""
    model = built(HEADS["argument"], kind)
    hidden = float(crossentropy(kind)(tf.identity(model(X))))
    assert not np.isclose(hidden, float(crossentropy(kind)(model(X))), rtol=0.05)


@pytest.mark.parametrize(("kind", "mode"), [*in_turn(KINDS, MODES[:3]), *(slow(kind, "xla") for kind in KINDS)])
def test_subclassed_models(kind, mode):
    for way in ("layers", "recompute"):
        model = built(Subclassed, kind)
        layers = [model.hidden, model.head]
        call = model if way == "layers" else tfgc.recompute(model)
        if way == "layers":
            tfgc.enable(model, layers=layers)
        check(plainly(Subclassed, kind, BASELINE[mode]), trained(call, model, crossentropy(kind), mode))


def two_ends(_):
    inputs = keras.Input((6,))
    x = keras.layers.Dense(16, "tanh")(inputs)
    early = keras.layers.Dense(3, "softmax", name="early")(x)
    x = keras.layers.Dense(16, "tanh")(x)
    return keras.Model(inputs, [early, keras.layers.Dense(3)(x), keras.layers.Dense(3, "sigmoid", name="late")(x)])


def three_losses(outputs):
    early, values, late = outputs
    return crossentropy("softmax")(early) + tf.reduce_mean(values**2) + crossentropy("sigmoid")(late)


@pytest.mark.parametrize(("way", "mode"), in_turn([*WAYS, "split"], MODES))
def test_some_of_several_outputs_are_probabilities(way, mode):
    plain = built(two_ends, "")
    expected = trained(plain, plain, three_losses, BASELINE[mode])
    model = built(two_ends, "")
    if way == "split":
        parts = [tfgc.recompute(part) for part in tfgc.split(model, 3)]

        def call(x, training):
            for part in parts:
                x = part(x, training=training)
            return x
    else:
        call = WAYS[way](model, mode)
    check(expected, trained(call, model, three_losses, mode))


OTHER_LOSSES = {
    "log": lambda p: -tf.reduce_mean(tf.math.log(tf.gather(p, TARGETS["softmax"], axis=1, batch_dims=1) + 1e-3)),
    "square": lambda p: tf.reduce_mean(p**2),
    "kl": lambda p: keras.ops.mean(keras.losses.kl_divergence(np.full((8, 3), 1 / 3, "float32"), p)),
    "focal": lambda p: keras.ops.mean(keras.losses.categorical_focal_crossentropy(np.eye(3)[TARGETS["softmax"]], p)),
}


@pytest.mark.parametrize(("name", "mode"), in_turn(OTHER_LOSSES))
def test_losses_that_take_the_probabilities_themselves(name, mode):
    loss = OTHER_LOSSES[name]
    plain = built(HEADS["argument"], "softmax")
    expected = trained(plain, plain, loss, BASELINE[mode])
    model = built(HEADS["argument"], "softmax")
    check(expected, trained(WAYS["enable"](model, mode), model, loss, mode))


@pytest.mark.parametrize("mode", ["eager", "compiled", "graph"])
def test_log_softmax(mode):
    def head(_):
        return functional(lambda x: keras.ops.log_softmax(keras.layers.Dense(3)(x)))

    def loss(out):
        return -tf.reduce_mean(tf.gather(out, TARGETS["softmax"], axis=1, batch_dims=1))

    plain = built(head, "")
    expected = trained(plain, plain, loss, BASELINE[mode])
    model = built(head, "")
    check(expected, trained(WAYS["enable"](model, mode), model, loss, mode))


FITS = [
    ("softmax", {}),
    ("sigmoid", {}),
    ("softmax", {"run_eagerly": True}),
    slow("sigmoid", {"run_eagerly": True}),
    gate("softmax", {"jit_compile": True}),
    slow("sigmoid", {"jit_compile": True}),
]


@pytest.mark.parametrize(("kind", "how"), FITS)
def test_fit(kind, how):
    losses = {}
    for way in ("plain", "enable", "last kept"):
        model = built(HEADS["argument"], kind)
        if way != "plain":
            WAYS[way](model, "compiled")
        model.compile(keras.optimizers.SGD(0.01), LOSSES[kind], **how)
        history = model.fit(X, TARGETS[kind], batch_size=4, epochs=2, shuffle=False, verbose=0)
        losses[way] = history.history["loss"]
    np.testing.assert_allclose(losses["enable"], losses["plain"], rtol=1e-5)
    np.testing.assert_allclose(losses["last kept"], losses["plain"], rtol=1e-5)


@pytest.mark.parametrize(("kind", "how"), FITS)
def test_train_step(kind, how):
    plain = built(HEADS["argument"], kind)
    plain.compile(keras.optimizers.SGD(0.01), LOSSES[kind], **how)
    model = built(HEADS["argument"], kind)
    step = tfgc.train_step(model, LOSSES[kind], keras.optimizers.SGD(0.01), plan=recomputed(model), **how)
    for _ in range(3):
        plain.reset_metrics()  # before Keras 3.13 it reports the mean of the steps since then
        expected = plain.train_on_batch(X, TARGETS[kind])
        assert float(step(X, TARGETS[kind])["loss"]) == pytest.approx(float(expected), rel=1e-5)


def test_other_attributes_of_tensors_come_along():
    def fn(x):
        y = x * 2.0
        y._keras_something = x * 3.0
        return y

    x = tf.ones((2,))
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(tfgc.recompute(fn)(x)._keras_something)
    np.testing.assert_array_equal(tape.gradient(loss, x), [3.0, 3.0])


def test_attributes_that_are_not_looked_at_are_not_stored():
    """The logits of an argument are as large as the argument."""
    logits = tf.random.normal((2, 3))
    alive = weakref.ref(logits)
    x = keras.activations.softmax(logits)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tfgc.recompute(lambda x: x * x)(x)
    del logits, x._keras_logits
    assert alive() is None
    np.testing.assert_allclose(tape.gradient(y, x), 2 * x)


def test_that_there_is_a_mask_matters():
    class Tells(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.supports_masking = True

        def call(self, x, mask=None):
            return x * 2.0 if mask is None else x * 3.0

    x = tf.ones((4, 4))
    x._keras_mask = tf.ones((4,), "bool")
    np.testing.assert_array_equal(tfgc.recompute(Tells())(x), Tells()(x))


def gated():
    """Squeeze-and-excitation: a layer reads what a sigmoid made, and never its logits."""
    x = inputs = keras.Input((8, 8, 8))
    for i in range(3):
        y = L.Conv2D(8, 3, padding="same", activation="relu")(x)
        mean = L.Reshape((1, 1, 8))(L.GlobalAveragePooling2D()(y))
        gate = L.Conv2D(8, 1, activation=("sigmoid", "softmax")[i % 2], name=f"gate{i}")(mean)
        x = L.Add()([x, L.Conv2D(8, 1, name=f"out{i}")(L.Multiply()([y, gate]))])
    return keras.Model(inputs, L.Dense(1)(L.GlobalAveragePooling2D()(x)))


@pytest.mark.parametrize("mode", ["eager", "compiled", "graph", pytest.param("xla", marks=pytest.mark.gate)])
def test_a_segment_that_starts_behind_a_sigmoid(mode):
    """Its trace starts from the logits, of which the sigmoid is all that reads them; it is given the gate alone."""
    x, y = noise(4, 8, 8, 8), [noise(4, 1, seed=2)]
    settings = {"graph": mode in ("graph", "xla"), "jit_compile": mode == "xla" or None}
    plain = plain_steps(gated, x, y, **settings)
    model = fresh(gated)
    cuts = [name for i in range(3) for name in (f"gate{i}", f"out{i}")]
    tfgc.enable(model, tfgc.plan(model, strategy="manual", keep=cuts))
    assert_equal(plain, train(model, x, y, **settings), exact=False)
