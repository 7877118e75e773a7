"""What depends on constants alone is held once, however many replays read it."""

import keras
import memory
import pytest
import tensorflow as tf

import tfgc


class Masked(keras.layers.Layer):
    """Multiplies by a mask for each sample, made of nothing but sizes."""

    def call(self, x):
        positions = tf.range(tf.shape(x)[1])
        allowed = tf.cast(positions[:, None] >= positions, x.dtype)
        return tf.matmul(tf.tile(allowed[None], [tf.shape(x)[0], 1, 1]), x)


def held_by_a_step(planned):
    layers = [layer for _ in range(6) for layer in (keras.layers.Dense(16, activation="gelu"), Masked())]
    model = keras.Sequential([keras.Input((64, 16)), *layers])
    if planned:
        tfgc.enable(model, tfgc.plan(model, 64, strategy="uniform", segments=4))
    variables = [v.value for v in model.trainable_variables]

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x, training=True) ** 2)
        return sum(tf.reduce_sum(g) for g in tape.gradient(loss, variables))

    x = tf.ones((64, 64, 16))
    before = memory.info("current")
    float(step(x))
    return memory.info("current") - before


@pytest.mark.gate
def test_a_batch_shaped_constant_is_held_once():
    """One mask of 64 x 64 x 64 floats is 1 MB; a copy in each place that reads it would come to ten.

    TensorFlow moves it into one call besides, and the chunks of its allocator vary.
    """
    plain, ours = memory.alone(held_by_a_step, False), memory.alone(held_by_a_step, True)
    assert plain >= 2**20
    assert ours <= plain + 2 * 2**20


class Penalized(keras.layers.Dense):
    """A layer that adds the mean of its outputs to the loss."""

    def call(self, x):
        y = super().call(x)
        self.add_loss(1e-4 * tf.reduce_mean(y**2))
        return y


def held_by_added_losses(planned):
    model = keras.Sequential([keras.Input((512,)), *(Penalized(512) for _ in range(8))])
    model.compile("sgd", "mse")
    if planned:
        tfgc.enable(model, layers=Penalized, verbose=0)
    data = tf.ones((512, 512))
    step = tf.function(lambda: model.train_step((data, data)), autograph=False)
    before = memory.info("current")
    step()
    return memory.info("current") - before


@pytest.mark.gate
def test_gradients_of_added_losses_are_held_once():
    """One for each element of an output is 1 MB; seven layers run again."""
    plain, ours = memory.alone(held_by_added_losses, False), memory.alone(held_by_added_losses, True)
    assert plain >= 2**20
    assert ours <= plain + 2**20
