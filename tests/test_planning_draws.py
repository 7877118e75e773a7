"""Planning at the first batch traces layers that draw random numbers, and training draws those of plain training."""

import itertools
import random

import keras
import numpy as np
import pytest
import tensorflow as tf
from equality import in_turn, noise

import tfgc

L = keras.layers
X, Y = noise(32, 8), noise(32, 2)


class Drawing(L.Layer):
    """A residual block whose branch is scaled by a number that is drawn without a seed."""

    def __init__(self, draw):
        super().__init__()
        self.draw, self.wide, self.narrow = draw, L.Dense(64, activation="gelu"), L.Dense(8)

    def build(self, shape):
        self.wide.build(shape)
        self.narrow.build((*shape[:-1], 64))

    def call(self, x):
        return x + self.draw(x) * self.narrow(self.wide(x))


DRAWS = {
    "keras.random": lambda x: keras.random.uniform((1, 8), 0.5, 1.5),
    "random": lambda x: random.random(),
    "numpy.random": lambda x: float(np.random.rand()),
}


def functional(draw):
    inputs = x = keras.Input((8,))
    for _ in range(4):
        x = Drawing(draw)(x)
    return keras.Model(inputs, L.Dense(2)(x))


class Subclassed(keras.Model):
    def __init__(self, draw):
        super().__init__()
        self.blocks, self.head = [Drawing(draw) for _ in range(4)], L.Dense(2)

    def call(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def trained(build, draw, eager, enabled):
    """Losses of some epochs, and what the streams give next."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(7)
    model = build(DRAWS[draw])
    model(X)
    model.compile(keras.optimizers.SGD(0.05), "mse", run_eagerly=eager)
    if enabled:
        tfgc.enable(model, budget="90%", verbose=0)
    keras.utils.set_random_seed(11)
    losses = model.fit(X, Y, batch_size=16, epochs=2, shuffle=False, verbose=0).history["loss"]
    assert not enabled or tfgc.status(model).plans
    return losses, [random.random(), np.random.rand(), float(keras.random.uniform(()))]


@pytest.mark.gate
@pytest.mark.parametrize(
    ("case", "mode"), in_turn([*itertools.product([functional, Subclassed], DRAWS)], ["graph", "eager"])
)
def test_training_draws_what_plain_training_draws(case, mode):
    build, draw = case
    eager = mode == "eager"
    (plain, next_of_plain), (losses, following) = (trained(build, draw, eager, enabled) for enabled in (False, True))
    np.testing.assert_allclose(losses, plain, rtol=1e-5)
    assert following == next_of_plain


@pytest.mark.parametrize("use", [tfgc.plan, tfgc.estimate, tfgc.pareto])
def test_planning_ahead_draws_nothing(use):
    """The shapes of what a layer makes were found by calls that drew."""

    def following(use):
        keras.utils.clear_session()
        keras.utils.set_random_seed(7)
        model = functional(lambda x: DRAWS["random"](x) * DRAWS["numpy.random"](x) * DRAWS["keras.random"](x))
        if use is not None:
            use(model, 16)
        return [random.random(), np.random.rand(), float(keras.random.uniform(()))]

    assert following(use) == following(None)


class Denoiser(keras.Model):
    """Draws noise in its own training step, as Keras's example of a diffusion model does."""

    def __init__(self, built):
        super().__init__()
        self.network = keras.Sequential([L.Dense(64, activation="gelu") for _ in range(4)] + [L.Dense(8)])
        if built:
            self.network.build((None, 8))

    def train_step(self, x):
        noise = keras.random.normal((16, 8))
        with tf.GradientTape() as tape:
            loss = keras.ops.mean(keras.ops.square(self.network(x + noise, training=True) - noise))
        weights = self.network.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return {"distance": loss}


@pytest.mark.gate
@pytest.mark.parametrize(("built", "eager"), in_turn([False, True], [False, True]))
def test_a_training_step_draws_what_it_draws_plainly(built, eager):
    def losses(enabled):
        keras.utils.clear_session()
        keras.utils.set_random_seed(7)
        model = Denoiser(built)
        model.compile(keras.optimizers.SGD(0.05), run_eagerly=eager)
        if enabled:
            tfgc.enable(model, verbose=0)
        losses = model.fit(X, batch_size=16, epochs=2, shuffle=False, verbose=0).history["distance"]
        assert not enabled or tfgc.status(model).plans
        assert not enabled or "to be planned" not in str(tfgc.status(model))
        return losses

    np.testing.assert_allclose(losses(True), losses(False), rtol=1e-5)
