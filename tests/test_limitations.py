"""What docs/limitations.md says is not as in plain code: where a result asserted here is mended, it changes too."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from equality import noise

import tfgc

L = keras.layers
X = noise(4, 4)


def enabled(model):
    """The model in two segments."""
    return tfgc.enable(model, strategy="uniform", segments=2)


def test_the_gradient_by_an_output_that_another_is_made_of_is_refused():
    inputs = keras.Input((4,))
    hidden = L.Dense(4, "tanh")(inputs)
    model = enabled(keras.Model(inputs, [hidden, L.Dense(1)(hidden)]))

    def gradient(training):
        with tf.GradientTape() as tape:
            hidden, out = model(X, training=training)
        return tape.gradient(out, hidden)

    with pytest.raises(tfgc.UnsupportedModelError, match="no way from result to result"):
        gradient(training=True)
    np.testing.assert_allclose(gradient(training=False), tf.tile(tf.transpose(model.layers[-1].kernel), [4, 1]))


@tf.custom_gradient
def straight_through(x):
    """Squares whose derivative is said to be 1."""
    return x**2, lambda upstream: upstream


@pytest.mark.parametrize("pfor", [False, True])
def test_the_gradient_of_a_jacobian_of_a_custom_gradient(pfor):
    x = noise(3)
    fn = tfgc.recompute(lambda x: straight_through(x) * x)

    @tf.function
    def step(x):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                made = fn(x)
            total = tf.reduce_sum(inner.jacobian(made, x, experimental_use_pfor=pfor))
        return outer.gradient(total, x)

    # The first derivative is x + x**2 by what the function says; that of its square is 1 then, and 2 x in truth.
    np.testing.assert_allclose(step(x), tf.fill(x.shape, 2.0), rtol=1e-5)
