"""On record: where `tf.recompute_grad` and `keras.remat` go wrong, run side by side.

These tests pass as long as the peers do what is written here. One that fails after an
upgrade is good news about the peer, and no fault of tfgc's.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
from equality import fresh, noise, train, worst
from models import STATEFUL, Noisy, X, Y, inputs_of

import tfgc

RECOMPUTE_GRAD = tf.recompute_grad
REMAT = getattr(keras, "remat", None)  # Keras 3.9 and later
needs_remat = pytest.mark.skipif(REMAT is None, reason="this Keras has no keras.remat")


def differences(build, wrapper):
    """How far the first step's gradients are off, and which states end elsewhere."""
    x = inputs_of(build)
    plain = train(fresh(build), x, Y, steps=1)
    model = fresh(build)
    theirs = train(model, x, Y, steps=1, call=wrapper(model))
    moved = [k for k, v in plain[0].states.items() if not np.array_equal(v, theirs[0].states[k])]
    return worst(plain, theirs), moved, plain[0].loss == theirs[0].loss


# model -> (gradients off by at least, or None; a state that ends elsewhere, "" for any; loss the same)
WRONG = {
    "dropout": (0.5, "seed_generator_state", True),  # the one that users meet first
    "batch_normalization": (None, "moving_mean", True),
    "auxiliary_losses": (0.01, None, True),
    "stateful_gru": (0.01, "", True),
    "metric_inside": (None, "total", True),
    "global_seed": (0.01, "seed_generator_state", True),
}
BY_NAME = {build.__name__: build for build in STATEFUL}


@pytest.mark.parametrize("name", WRONG)
def test_recompute_grad_is_silently_wrong(name):
    at_least, state, same_loss = WRONG[name]
    off, moved, loss = differences(BY_NAME[name], RECOMPUTE_GRAD)
    assert at_least is None or off >= at_least
    assert state is None or any(state in name for name in moved)
    assert loss == same_loss


@needs_remat
@pytest.mark.parametrize("name", ["dropout", "batch_normalization", "stateful_gru", "metric_inside"])
def test_remat_is_silently_wrong(name):
    at_least, state, _ = WRONG[name]
    off, moved, _ = differences(BY_NAME[name], REMAT)
    assert at_least is None or off >= at_least
    assert any(state in name for name in moved)


def test_recompute_grad_loses_the_mask():
    """The replay sees a copy of the tensor, without its mask."""
    embedding, lstm = keras.layers.Embedding(9, 4, mask_zero=True), keras.layers.LSTM(4)
    tokens = tf.constant(np.random.default_rng(0).integers(0, 3, (8, 5)))
    embedding(tokens), lstm(embedding(tokens))

    def gradient(call):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(call(embedding(tokens)) ** 2)
        return tape.gradient(loss, lstm.trainable_variables[0].value)

    plain, theirs, ours = gradient(lstm), gradient(RECOMPUTE_GRAD(lstm)), gradient(tfgc.recompute(lstm))
    np.testing.assert_array_equal(plain, ours)
    assert np.linalg.norm(theirs - plain) > 0.1 * np.linalg.norm(plain)


@needs_remat
def test_remat_fails_in_mixed_precision():
    """The autocast scope lives in `__call__`, and the replay runs `call`."""
    keras.config.set_dtype_policy("mixed_float16")
    layer = keras.layers.Dense(4)
    layer.build((None, 8))
    layer.call = REMAT(layer.call)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(X))
    with pytest.raises((TypeError, tf.errors.InvalidArgumentError)):
        tape.gradient(loss, layer.kernel.value)


@pytest.mark.parametrize("argument", [True, None])
def test_recompute_grad_refuses_arguments_that_are_no_tensors(argument):
    def run(wrapper):
        with tf.GradientTape() as tape:
            tape.watch(X)
            y = wrapper(lambda x, option: tf.tanh(x) if option is argument else x)(X, argument)
        return tape.gradient(y, X)

    np.testing.assert_array_equal(tf.function(run)(lambda f: f), tf.function(run)(tfgc.recompute))
    with pytest.raises((TypeError, ValueError, AttributeError, tf.errors.OpError)):
        tf.function(run)(RECOMPUTE_GRAD)


def test_recompute_grad_replays_the_last_block():
    """Its backward pass comes at once, so nothing was saved by forgetting it."""
    runs = []

    class Counted(keras.layers.Layer):
        def call(self, x):
            runs.append(self.name)
            return x * 2.0

    def step(call):
        runs.clear()
        with tf.GradientTape() as tape:
            tape.watch(X)
            y = call(X)
        tape.gradient(y, X)
        return len(runs)

    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8), Counted()])
    assert step(RECOMPUTE_GRAD(model)) == 2
    tfgc.enable(model, tfgc.plan(model, strategy="uniform"))
    assert step(model) == 1


def test_stateless_call_draws_the_same_noise_in_every_step():
    """A pure replay that forgets the global generator's advance."""
    model = fresh(lambda: keras.Sequential([keras.Input((4,)), Noisy()]))
    x = noise(2, 4)

    def keras_pure():
        return model.stateless_call([], [v.value for v in model.non_trainable_variables], x, training=True)[0]

    keras_pure()
    np.testing.assert_array_equal(keras_pure(), keras_pure())
    ours = tfgc.recompute(model)
    assert not np.array_equal(ours(x), ours(x))


def test_forward_mode_through_recompute_grad_and_custom_gradient():
    """A plain `tf.custom_gradient` gives None, without a word."""

    @tf.custom_gradient
    def plain_custom(x):
        def replay(dy):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = tf.tanh(x)
            return tape.gradient(y, x, output_gradients=dy)

        return tf.tanh(tf.stop_gradient(x)), replay

    with tf.autodiff.ForwardAccumulator(X, tf.ones_like(X)) as accumulator:
        y = plain_custom(X)
    assert accumulator.jvp(y) is None
    with tf.autodiff.ForwardAccumulator(X, tf.ones_like(X)) as accumulator:
        y = tfgc.recompute(tf.tanh)(X)
    np.testing.assert_allclose(accumulator.jvp(y), 1 - np.tanh(X) ** 2, rtol=1e-5)


def test_plain_variables_are_demanded_by_custom_gradient():
    variable = tf.Variable(2.0)
    with pytest.raises(TypeError, match="variables"):
        tf.custom_gradient(lambda x: (x * variable, lambda dy: dy))(X)
    with tf.GradientTape() as tape:
        y = tfgc.recompute(lambda x: x * variable)(X)
    np.testing.assert_allclose(tape.gradient(y, variable), tf.reduce_sum(X))
