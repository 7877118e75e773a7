"""XLA makes index tensors for the gradient of max pooling at the start of a step; replays do without them."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfgc
from tfgc._framework import xla_gradients

L = keras.layers
WINDOWS = [
    ((9, 8), (3, 3), (2, 2), "SAME"),
    ((9, 8), (3, 3), (2, 2), "VALID"),
    ((8, 8), (2, 2), (2, 2), "VALID"),
    ((7, 5), (2, 3), (1, 2), "SAME"),
    ((12, 12), (2, 2), (3, 3), "SAME"),
]


def gradient(images, pooled, upstream, sizes, strides, padding):
    return tf.raw_ops.MaxPoolGrad(
        orig_input=images,
        orig_output=pooled,
        grad=upstream,
        ksize=[1, *sizes, 1],
        strides=[1, *strides, 1],
        padding=padding,
    )


def without_scatters(*shapes):
    """The gradient, compiled by XLA for these shapes."""

    def compiled(images, pooled, upstream, *window):
        @tf.function(jit_compile=True, input_signature=[tf.TensorSpec(shape) for shape in shapes])
        def function(images, pooled, upstream):
            return xla_gradients.without_scatters(lambda: [gradient(images, pooled, upstream, *window), None])[0]

        return function(images, pooled, upstream)

    return compiled


@pytest.mark.parametrize(
    ("window", "special", "batch"),
    [*((window, -np.inf, 2) for window in WINDOWS), (WINDOWS[0], None, None), (WINDOWS[2], None, 2)],
    ids=str,
)
def test_each_gradient_goes_to_the_first_of_the_largest(window, special, batch):
    """Of few values, so that many are equal; -inf is no padding."""
    (height, width), sizes, strides, padding = window
    rng = np.random.default_rng(0)
    images = rng.integers(0, 4, (2, height, width, 3)).astype("float32")
    if special is not None:
        images[rng.random(images.shape) < 0.7] = special
    pooled = tf.nn.max_pool2d(images, sizes, strides, padding)
    upstream = rng.normal(size=pooled.shape).astype("float32")
    shapes = [(batch, *images.shape[1:]), *[(batch, *pooled.shape[1:])] * 2]
    found = without_scatters(*shapes)(images, pooled, upstream, sizes, strides, padding)
    np.testing.assert_array_equal(found, gradient(images, pooled, upstream, sizes, strides, padding))


def test_nan_goes_where_xla_lets_it_go():
    rng = np.random.default_rng(0)
    images = rng.integers(0, 4, (2, 9, 9, 3)).astype("float32")
    images[rng.random(images.shape) < 0.3] = np.nan
    window = (3, 3), (2, 2), "VALID"
    pooled = tf.nn.max_pool2d(images, *window)
    upstream = rng.normal(size=pooled.shape).astype("float32")
    expected = tf.function(gradient, jit_compile=True)(images, pooled, upstream, *window)
    found = without_scatters(images.shape, pooled.shape, pooled.shape)(images, pooled, upstream, *window)
    np.testing.assert_array_equal(found, expected)


def pooled_model(pool, **options):
    layers = [
        L.Conv2D(4, 3, activation="relu"),
        L.MaxPooling2D(pool, 2, **options),
        L.Conv2D(4, 3),
        L.Flatten(),
        L.Dense(1),
    ]
    return keras.Sequential([keras.Input((16, 16, 3)), *layers])


def operations(function, *args):
    graph = function.get_concrete_function(*args).graph
    return {op.type for op in graph.get_operations() if op.outputs and op.outputs[0].consumers()}


@pytest.mark.parametrize(
    ("compiled", "pool", "options", "scatters"),
    [
        (True, 3, {}, False),
        (True, 3, {"padding": "same"}, False),
        (True, 6, {}, True),  # 36 elements would be as many slices
        (False, 3, {}, True),
    ],
)
def test_only_replays_under_xla_do_without_scatters(compiled, pool, options, scatters):
    model = pooled_model(pool, **options)
    x = tf.random.normal((2, 16, 16, 3))

    def gradients(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(x) ** 2)
        return tape.gradient(loss, model.trainable_variables)

    plain = tf.function(gradients)(x)
    tfgc.enable(model, tfgc.plan(model, 2, strategy="manual", keep=[model.layers[2].name]))
    step = tf.function(gradients, jit_compile=compiled)
    for ours, expected in zip(step(x), plain):
        np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-4)
    assert ("MaxPoolGrad" in operations(step, x)) is scatters
