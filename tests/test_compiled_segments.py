"""Eager loops that call compiled segments: what their gradients are, what they keep, and what budgets buy there."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from equality import noise
from memory import alone, info, peak

import tfgc

L = keras.layers


class Relaxed(L.Layer):
    """Moves its input down the gradient of an energy, which a tape inside of its call gives, zero if it is lost."""

    def build(self, shape):
        self.w = self.add_weight(shape=(shape[-1], shape[-1]))

    def call(self, x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            energy = tf.reduce_sum(tf.tanh(x @ tf.convert_to_tensor(self.w)) ** 2)
        return x - 0.5 * tape.gradient(energy, x, unconnected_gradients="zero")


@pytest.mark.parametrize(
    "how",
    [{}, pytest.param({"strategy": "sqrt"}, marks=pytest.mark.slow), {"layers": Relaxed}],
    ids=["default", "sqrt", "layers"],
)
def test_tapes_inside_of_layers_record_at_every_batch_size(how):
    def trained(**options):
        keras.utils.set_random_seed(3)
        model = keras.Sequential([keras.Input((8,)), L.Dense(8), Relaxed(), L.Dense(8), Relaxed(), L.Dense(4)])
        model.compile("sgd", "mse", run_eagerly=True)
        if options:
            tfgc.enable(model, verbose=0, **{key: value for key, value in options.items() if key != "on"})
        for batch in (4, 3, 5):
            model.train_on_batch(noise(batch, 8), noise(batch, 4, seed=2))
        return model.get_weights()

    for expected, found in zip(trained(), trained(on=True, **how)):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def in_pieces(sizes, mode="keep"):
    """A strategy that cuts into pieces of so many nodes."""

    def strategy(graph):
        ends = np.cumsum(sizes).tolist()
        pieces = [(end - size, end, mode) for size, end in zip(sizes, ends)]
        return tfgc.Plan.from_pieces(graph, pieces, strategy="in pieces")

    return strategy


def held_by_gelus():
    """Bytes that a tape holds after a compiled call of two layers that are kept."""
    model = keras.Sequential([keras.Input((256,)), *(L.Dense(256, "gelu") for _ in range(2)), L.Dense(1)])
    tfgc.enable(model, tfgc.plan(model, 1024, strategy="keep_all"))
    x, found = tf.ones((1024, 256)), []
    for _ in range(3):
        before = info("current")
        with tf.GradientTape() as tape:
            y = model(x, training=True)
        found.append(info("current") - before)
        tape.gradient(y, model.trainable_variables[0].value)
        del tape, y
    return min(found)


def test_a_kept_segment_keeps_what_its_gradient_reads():
    """TensorFlow would keep six tensors for each gelu, two of them for gradients of numbers."""
    tensor = 1024 * 256 * 4
    assert 8 * tensor <= alone(held_by_gelus) < 8.5 * tensor


class Halving(L.Layer):
    """Draws in its backward pass, which runs whether its result is read or not."""

    def call(self, x):
        @tf.custom_gradient
        def half(x):
            return x / 2, lambda upstream: upstream * tf.random.uniform(upstream.shape, 0.5, 0.5 + 1e-9)

        return half(x)


def measured_and_predicted(kind, how):
    """The peak of a compiled step, and what the plan says that it needs without weights."""
    if kind == "conv":
        layers = [L.Conv2D(16, 3, padding="same", activation="relu") for _ in range(6)]
        model = keras.Sequential([keras.Input((32, 32, 16)), *layers, L.Flatten(), L.Dense(1)])
    else:
        model = keras.Sequential([keras.Input((256,)), *(L.Dense(256, "gelu") for _ in range(6)), L.Dense(1)])
    plan = tfgc.plan(model, 64 if kind == "conv" else 4096, strategy=how if isinstance(how, str) else in_pieces(*how))
    tfgc.enable(model, plan)
    x = noise(plan.batch_size, *model.input_shape[1:])

    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x, training=True) ** 2)
        tape.gradient(loss, [v.value for v in model.trainable_variables])

    found = tfgc.estimate(model, plan.batch_size, plan, mode="compiled")
    return peak(step), found.needed_bytes - found.fixed_bytes


CASES = [
    ("conv", ([1] * 8,), 1.05),  # Each receives a gradient that it may not overwrite.
    pytest.param("conv", ([4, 4],), 1.05, marks=pytest.mark.slow),
    pytest.param("conv", ([4, 4], "recompute"), 1.05, marks=pytest.mark.slow),
    ("conv", "optimal", 1.05),
    pytest.param("gelu", ([1] * 7,), 1.05, marks=pytest.mark.slow),
    ("gelu", ([3, 4],), 1.15),  # Inside of a kept segment TensorFlow chooses the order.
    ("gelu", ([2, 2, 3], "selective"), 1.05),
    pytest.param("gelu", "optimal", 1.05, marks=pytest.mark.slow),
]
