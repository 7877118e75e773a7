"""Where a recomputed call may stand, and calls on tensors without elements."""

import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from equality import fresh

import tfgc
from tfgc._framework import model_checks

L = keras.layers
TF1 = (
    "{} was called in a TensorFlow 1 graph (tf.Graph, tf.compat.v1.Session), where nothing can be recomputed: call it "
    "eagerly or inside a tf.function"
)
SQUARE = tfgc.recompute(lambda x: x * x)


def dense():
    return keras.Sequential([keras.Input((3,)), L.Dense(3, name="first"), L.Dense(3)])


def test_a_recomputed_function_refuses_a_tf1_graph():
    with tf.Graph().as_default():
        x = tf.compat.v1.placeholder(tf.float32, (2, 3))
        variable = tf.compat.v1.get_variable("v", (3,), use_resource=True)

        def scaled(x):
            return x * variable

        with pytest.raises(tfgc.UnsupportedModelError) as raised:
            tfgc.recompute(scaled)(x)
    assert str(raised.value) == TF1.format("the recomputed 'scaled'")


def enabled(model):
    return tfgc.enable(model, tfgc.plan(model, strategy="uniform", segments=2)), f"the enabled {model.name!r}"


def by_layers(model):
    return tfgc.enable(model, layers=["first"]), f"layer '{model.get_layer('first').path}'"


def stepped(model):
    step = tfgc.train_step(model, "mse", "sgd", plan=tfgc.plan(model, strategy="uniform", segments=2))
    return lambda x, training: step(x, x), f"the training step of {model.name!r}"


@pytest.mark.parametrize("how", [enabled, by_layers, stepped])
def test_models_refuse_a_tf1_graph(how):
    call, name = how(fresh(dense))
    with tf.Graph().as_default():
        x = tf.compat.v1.placeholder(tf.float32, (2, 3))
        with pytest.raises(tfgc.UnsupportedModelError) as raised:
            call(x, training=True)
    assert TF1.format(name) in str(raised.value)


def test_what_builds_a_function_is_no_tf1_graph():
    x = tf.constant([[1.0, 2.0]])
    wrapped = tf.compat.v1.wrap_function(lambda x: tf.gradients(SQUARE(x), x), [tf.TensorSpec((1, 2))])
    np.testing.assert_array_equal(wrapped(x)[0], [[2.0, 4.0]])
    mapped = next(iter(tf.data.Dataset.from_tensors(x).map(SQUARE)))
    np.testing.assert_array_equal(mapped, [[1.0, 4.0]])
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        given = tf.compat.v1.placeholder(tf.float32, (1, 2))
        gradient = tf.gradients(tf.function(SQUARE)(given), given)
        np.testing.assert_array_equal(session.run(gradient, {given: [[1.0, 2.0]]})[0], [[2.0, 4.0]])
    symbolic = L.Lambda(SQUARE)(keras.Input((2,)))
    assert symbolic.shape == (None, 2)


def test_empty_means_all_tensors_have_no_elements():
    none, some = tf.zeros((0, 3)), tf.zeros((2, 3))
    assert model_checks.is_empty(none)
    assert model_checks.is_empty([none, {"training": True}], tf.zeros((1, 0)))
    assert model_checks.is_empty(none, tf.constant(0.5))  # a factor beside it
    assert not model_checks.is_empty(none, some)
    assert not model_checks.is_empty(tf.constant(1.0))
    assert not model_checks.is_empty()
    shapes = []
    tf.function(lambda x: shapes.append(model_checks.is_empty(x)) or x, input_signature=[tf.TensorSpec(None)])(none)
    assert shapes == [False]


# On these sizes TensorFlow's optimizer killed the process, with a layer enabled and not without.
NORMALIZED = """
import tensorflow as tf, keras, tfgc
class Model(keras.Model):
    def __init__(self):
        super().__init__()
        self.normalize = keras.layers.LayerNormalization()
    def build(self, shape):
        self.normalize.build(shape)
    def call(self, x):
        return self.normalize(x)
model = Model()
model(tf.ones((2, *{shape}[1:])))
tfgc.enable(model, layers=[model.normalize])
@tf.function
def step(x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = model(x, training=True)
        loss = tf.reduce_sum(y)
    return y, tape.gradient(loss, [x, *(v.value for v in model.trainable_variables)])
y, gradients = step(tf.zeros({shape}))
assert y.shape == {shape} and [g.shape for g in gradients] == [{shape}, (10,), (10,)]
"""


@pytest.mark.gate
@pytest.mark.parametrize("shape", [(1, 0, 10), pytest.param((0, 10), marks=pytest.mark.slow)])
def test_a_normalization_of_nothing_survives(shape):
    done = subprocess.run(
        [sys.executable, "-c", NORMALIZED.format(shape=shape)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-1000:]


LAYERS = {
    "layer normalization": (L.LayerNormalization, (10,)),
    "batch normalization": (L.BatchNormalization, (4, 4, 10)),
    "group normalization": (lambda: L.GroupNormalization(2), (4, 10)),
    "rms normalization": (L.RMSNormalization, (10,)),
    "max pooling": (L.MaxPooling2D, (4, 4, 3)),  # as a tf.function it kills the process, in plain TensorFlow too
    "average pooling": (lambda: L.AveragePooling2D(2), (4, 4, 3)),
    "depthwise convolution": (lambda: L.DepthwiseConv2D(3), (6, 6, 3)),
    "transposed convolution": (lambda: L.Conv2DTranspose(4, 3), (6, 6, 3)),
    "attention": (lambda: Itself(L.MultiHeadAttention(2, 4)), (5, 8)),
    "gru": (lambda: L.GRU(4), (5, 8)),
}


class Itself(L.Layer):
    """Attends to its own input."""

    def __init__(self, attention):
        super().__init__()
        self.attention = attention

    def build(self, shape):
        self.attention.build(shape, shape)

    def call(self, x):
        return self.attention(x, x)


def stepped_by(model, x, graph):
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = model(x, training=True)
            loss = tf.reduce_sum(y)
        return y, *tape.gradient(loss, [x, *(v.value for v in model.trainable_variables)])

    return [None if t is None else t.numpy() for t in (tf.function(step) if graph else step)(x)]


QUICK = {("layer normalization", True), ("max pooling", False), ("batch normalization", True)}
CROSSED = [
    pytest.param(name, graph, marks=() if (name, graph) in QUICK else pytest.mark.slow)
    for name in LAYERS
    for graph in (False, True)
    if (name, graph) != ("max pooling", True)
]


@pytest.mark.parametrize(("name", "graph"), CROSSED)
def test_layers_on_an_empty_batch_do_as_without(name, graph):
    make, shape = LAYERS[name]

    def build():
        x = keras.Input(shape)
        return keras.Model(x, L.Dense(2)(make()(L.Dense(shape[-1])(x))))

    x = tf.zeros((0, *shape))
    ours = fresh(build)
    tfgc.enable(ours, layers=[ours.layers[2]])
    parts = fresh(build)
    tfgc.enable(parts, tfgc.plan(parts, strategy="uniform", segments=2))
    try:
        plain = stepped_by(fresh(build), x, graph)
    except tf.errors.InvalidArgumentError:  # Some convolutions of TensorFlow 2.19.
        for model in (ours, parts):
            with pytest.raises(tf.errors.InvalidArgumentError):
                stepped_by(model, x, graph)
        return
    for model in (ours, parts):
        for a, b in zip(plain, stepped_by(model, x, graph), strict=True):
            np.testing.assert_array_equal(b, a)
