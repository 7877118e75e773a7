"""Steps in which several branches, or several models, run again."""

import keras
import numpy as np
import tensorflow as tf
from equality import fresh, noise

import tfgc

L = keras.layers
X = noise(8, 16), noise(8, 16, seed=2)


class Wide(L.Layer):
    """Small outside, large inside."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.up, self.down = L.Dense(32, activation="gelu"), L.Dense(16)

    def build(self, shape):
        self.up.build(shape)
        self.down.build((*shape[:-1], self.up.units))

    def call(self, x):
        return x + self.down(self.up(x))


class Twins(keras.Model):
    """One encoder for two inputs."""

    def __init__(self):
        super().__init__()
        self.blocks = [Wide(name=f"block_{i}") for i in range(3)]

    def call(self, pair, training=None):
        made = []
        for x in pair:
            for block in self.blocks:
                x = block(x)
            made.append(x)
        return made[0] * made[1]


def twins():
    model = Twins()
    model(X)
    return model


def branches():
    inputs = keras.Input((16,))
    sides = [Wide(name=f"side_{i}")(inputs) for i in range(4)]
    return keras.Model([inputs], L.Dense(4, name="head")(L.Add(name="sum")(sides)))


def values(model):
    return [v.value for v in model.trainable_variables]


def gradients(model, x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(x, training=True) ** 2)
    return tape.gradient(loss, values(model))


class CheckedDense(L.Dense):
    """Has an effect, as its gradient has: TensorFlow keeps them in the order in which they are traced."""

    def call(self, x):
        return super().call(tf.debugging.check_numerics(x, "input"))


def side_by_side():
    inputs = keras.Input((16,))
    x = L.Dense(16, name="below")(inputs)
    return keras.Model(inputs, L.Add(name="sum")([CheckedDense(16, name=name)(x) for name in ("one", "other")]))


def test_branches_with_effects_in_one_replay():
    plain, model = fresh(side_by_side), fresh(side_by_side)
    tfgc.enable(model, tfgc.plan(model, strategy="uniform", segments=1))
    for one, other in zip(tf.function(gradients)(model, X[0]), gradients(plain, X[0]), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_two_models_in_one_step():
    """As a GAN has them: the second pass goes through the model that the first one trained."""

    def run(enable):
        makers, judges = enable(fresh(branches)), enable(fresh(twins))

        @tf.function
        def step(x, y):
            made = tf.tile(makers(x, training=True), (1, 4))
            first = gradients(judges, (made, y))
            with tf.GradientTape() as tape:
                made = tf.tile(makers(x, training=True), (1, 4))
                loss = tf.reduce_mean(judges((made, y), training=True))
            return first, tape.gradient(loss, values(makers))

        return tf.nest.flatten(step(*X))

    plain, ours = run(lambda model: model), run(lambda model: tfgc.enable(model, layers=Wide))
    norms = [np.linalg.norm(g) for g in plain]
    assert max(norms) > 0
    for a, b, norm in zip(plain, ours, norms, strict=True):
        assert np.linalg.norm(b - a) <= 1e-5 * max(norm, 1e-3 * max(norms))


def test_gradients_that_onednn_makes_at_once_wait_for_each_others_inputs():
    """Of the filter and the bias of a convolution: an edge from one to what the other reads is a circle once fused."""

    def towers():
        x = keras.Input((64, 64, 8))
        each = [L.Conv2D(4, 3, strides=4, name=f"conv_{i}")(L.Activation("tanh")(x)) for i in range(4)]
        return keras.Model(x, L.Dense(4)(L.Flatten()(L.Concatenate()(each))))

    images, targets = tf.random.normal((32, 64, 64, 8), seed=1), tf.random.normal((32, 4), seed=2)
    losses = []
    for recomputes in (False, True):
        keras.utils.set_random_seed(3)
        model = towers()
        model.compile("sgd", "mse", jit_compile=False)
        if recomputes:
            plan = tfgc.plan(model, 32, strategy="manual", keep=["conv_0"])
            assert [segment.mode for segment in plan.segments] == ["recompute", "keep"]
            tfgc.enable(model, plan)
        losses.append([model.train_on_batch(images, targets) for _ in range(2)])
    np.testing.assert_allclose(*losses, rtol=1e-5)
