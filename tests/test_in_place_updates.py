"""Where something is recomputed, TensorFlow copies no weight to update it."""

import pathlib
import sys

import keras
import memory
import numpy as np
import pytest
import tensorflow as tf
from updates import ALL, dense, each, graph_of, halves, weights_after

import tfgc
from tfgc._framework import in_place_updates, profiler

SCRIPTS = pathlib.Path(__file__).parent.parent / "scripts"
UNITS = 512  # a weight of 1 MiB
OPTIMIZERS = {
    "SGD": lambda: keras.optimizers.SGD(0.01),
    "momentum": lambda: keras.optimizers.SGD(0.01, momentum=0.9),
    "Adam": lambda: keras.optimizers.Adam(0.001),
}


def copies(name, enabled):
    """How many weights are copied in each of some steps, by the allocator's events."""
    sys.path.insert(0, str(SCRIPTS))
    import peak_buffers

    model, x, y = dense(OPTIMIZERS[name], units=UNITS, layers=8, batch=32)
    if enabled:
        tfgc.enable(model, tfgc.plan(model, 32, strategy="uniform", segments=3))
    x, y = tf.constant(x), tf.constant(y)
    for _ in range(3):
        model.train_on_batch(x, y)
    steps = [peak_buffers.events(profiler.planes(lambda: model.train_on_batch(x, y))) for _ in range(5)]
    made = [[b for kind, b in step if kind == peak_buffers.ALLOCATED] for step in steps]
    return [sum("AssignSub" in b["tf_op"] and b["requested_bytes"] == 4 * UNITS**2 for b in step) for step in made]


@pytest.mark.parametrize("name", each("Adam", of=OPTIMIZERS))
def test_no_weight_is_copied(name):
    assert memory.alone(copies, name, True) == [0] * 5


def test_a_plain_step_copies_weights():
    assert sum(memory.alone(copies, "SGD", False)) > 0, "what the test above counts"


def test_nothing_is_computed_that_was_not(monkeypatch):
    """The first layer's gradient with respect to its input reads a weight, too, but nobody needs it."""
    monkeypatch.setattr(in_place_updates, "LEAST", 0)
    model, x, y = dense(OPTIMIZERS["SGD"])
    model.optimizer.build(model.trainable_variables)
    tfgc.enable(model, halves(model))
    graph = graph_of(lambda x, y: model.train_step((x, y)), x, y)
    writers = [op for op in graph.get_operations() if op.type == "AssignSubVariableOp"]
    awaited = {other for op in writers for other in op.control_inputs if other.type == "MatMul"}
    kernels = sum(v.shape.rank == 2 for v in model.trainable_variables)
    assert len(awaited) >= 2 * kernels, "both runs, or the run and a gradient"
    products = [op for op in graph.get_operations() if op.type == "MatMul"]
    unread = [op for op in products if not op.outputs[0].consumers()]
    assert unread, "the gradient that nobody needs"
    assert not awaited.intersection(unread)


# A kind of update each; tests/test_waiting_updates.py has three others.
@pytest.mark.parametrize("name", each("momentum", "Muon", "accumulation"))
def test_the_same_weights_and_slots_bit_by_bit(name, monkeypatch):
    found = []
    for least in (0, 2**40):
        monkeypatch.setattr(in_place_updates, "LEAST", least)
        keras.utils.set_random_seed(3)
        model, x, y = dense(ALL[name])
        tfgc.enable(model, halves(model))
        found.append(weights_after(model, x, y))
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_two_optimizers_in_one_step(monkeypatch):
    """The second one's gradients read weights that the first has updated."""
    monkeypatch.setattr(in_place_updates, "LEAST", 0)
    x = tf.constant(np.random.default_rng(0).normal(size=(8, 16)).astype("float32"))

    def trained(enabled):
        keras.utils.set_random_seed(3)
        layers = keras.layers
        parts = [keras.Sequential([keras.Input((16,)), *(layers.Dense(16, "gelu") for _ in range(4))]) for _ in "ab"]
        optimizers = [keras.optimizers.SGD(0.1, momentum=0.9) for _ in parts]
        for part, optimizer in zip(parts, optimizers):
            optimizer.build(part.trainable_variables)
            if enabled:
                tfgc.enable(part, tfgc.plan(part, 8, strategy="uniform", segments=2))

        @tf.function
        def step():
            for part, optimizer in zip(parts, optimizers):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean((parts[1](parts[0](x, training=True), training=True) - 1) ** 2)
                gradients = tape.gradient(loss, [v.value for v in part.trainable_variables])
                optimizer.apply(gradients, part.trainable_variables)

        for _ in range(3):
            step()
        return [w for part in parts for w in part.get_weights()]

    for plain, found in zip(trained(False), trained(True), strict=True):
        np.testing.assert_allclose(found, plain, rtol=1e-5, atol=1e-6)


class Checked(keras.optimizers.SGD):
    """Updates no weight if a check fails, by control edges to an IdentityN of its own."""

    def _clip_gradients(self, grads):
        with tf.control_dependencies([tf.debugging.assert_less(tf.linalg.global_norm(grads), 1e-9)]):
            return tf.identity_n(grads)


def test_checks_of_gradients_come_before_the_update():
    model, x, y = dense(lambda: Checked(0.1))
    tfgc.enable(model, halves(model))
    before = model.get_weights()
    for _ in range(5):
        with pytest.raises(tf.errors.InvalidArgumentError):
            model.train_on_batch(x, y)
    for found, wanted in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(found, wanted)
