"""What an update computes of weights and slots alone waits for its gradient where something is recomputed."""

import inspect
import statistics

import keras
import memory
import numpy as np
import pytest
import tensorflow as tf
from updates import ALL, EARLY, dense, each, graph_of, halves, weights_after

import tfgc
from tfgc._framework import operation_order


def recomputed(model):
    return tfgc.enable(model, halves(model))


@pytest.fixture
def float64():
    before = keras.backend.floatx()
    keras.backend.set_floatx("float64")
    yield
    keras.backend.set_floatx(before)


# A kind of update each; tests/test_in_place_updates.py has three others.
@pytest.mark.parametrize("name", each("AdamW", "averages", "Adafactor"))
def test_the_same_weights_and_slots(name, float64):
    model, x, y = dense(ALL[name])
    other, *_ = dense(ALL[name])
    other.set_weights(model.get_weights())
    for found, wanted in zip(weights_after(recomputed(other), x, y), weights_after(model, x, y), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-12)


def free_of_gradients(graph, shape):
    """Operations of an update with results of the size of a weight that wait for no gradient."""
    operations = graph.get_operations()
    before = operation_order.dependencies(operations)
    gradients = [op for op in operations if "gradient_tape" in op.name]
    assert gradients
    waiting = set(gradients)
    for op in operations:
        if waiting.intersection(before[op]):
            waiting.add(op)
    last = max(i for i, op in enumerate(operations) if op in set(gradients))
    made = [op for op in operations[last + 1 :] if op.outputs and op.outputs[0].shape == shape]
    return [op for op in made if op not in waiting and op.type not in ("ReadVariableOp", "Const", "Placeholder")]


@pytest.mark.parametrize("name", each("AdamW", "momentum", "averages", "Muon", of=EARLY))
def test_nothing_of_a_weights_size_is_made_before_its_gradient(name):
    model, x, y = dense(EARLY[name])
    model.optimizer.build(model.trainable_variables)
    shape = model.trainable_variables[0].shape

    def step(x, y):
        return model.train_step((x, y))

    assert free_of_gradients(graph_of(step, x, y), shape), "a plain step has such operations"
    recomputed(model)
    assert not free_of_gradients(graph_of(step, x, y), shape)


def own_step(model, update):
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        update(tape.gradient(loss, [v.value for v in model.trainable_variables]))
        return loss

    return step


def test_in_an_own_loop():
    model, x, y = dense(EARLY["AdamW"])
    optimizer = EARLY["AdamW"]()
    optimizer.build(model.trainable_variables)
    recomputed(model)
    found = graph_of(own_step(model, optimizer.apply), x, y)
    assert not free_of_gradients(found, model.trainable_variables[0].shape)


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.blocks = [keras.layers.Dense(16, "gelu") for _ in range(4)]

    def call(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def test_in_plans_by_calls():
    model = Subclassed()
    x = np.ones((8, 16), "float32")
    model(x)
    model.compile(keras.optimizers.AdamW(), "mse", jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    tfgc.enable(model, layers=model.blocks[:2])
    found = graph_of(lambda x, y: model.train_step((x, y)), x, x)
    assert not free_of_gradients(found, model.trainable_variables[0].shape)


def test_with_sparse_gradients():
    def built():
        keras.utils.set_random_seed(0)
        layers = keras.layers.Embedding(50, 16), keras.layers.Dense(16, "gelu"), keras.layers.Dense(16, "gelu")
        model = keras.Sequential([keras.Input((5,), dtype="int32"), *layers])
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9, weight_decay=1e-2), "mse", jit_compile=False)
        return model

    x = np.random.default_rng(0).integers(0, 50, (8, 5))
    y = np.ones((8, 5, 16), "float32")
    plain, other = built(), recomputed(built())
    for found, wanted in zip(weights_after(other, x, y), weights_after(plain, x, y), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_raw_variables_of_tensorflow_wait_too():
    model, x, y = dense(EARLY["AdamW"])
    other, *_ = dense(EARLY["AdamW"])
    other.set_weights(model.get_weights())
    recomputed(other)
    for one in (model, other):
        raw = [v.value for v in one.trainable_variables]
        step = own_step(one, lambda gradients, o=one.optimizer, raw=raw: o.apply(gradients, raw))
        one.optimizer.build(raw)
        tf.function(step)(x, y)
    for found, wanted in zip(other.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    graph = graph_of(step, x, y)
    assert not free_of_gradients(graph, raw[0].shape)


def test_keras_checks_of_arguments_stay():
    model, x, y = dense(EARLY["AdamW"])
    recomputed(model)
    optimizer = EARLY["AdamW"]()
    with pytest.raises(ValueError, match="must already be built"):
        tf.function(own_step(model, lambda gradients: optimizer.apply(gradients)))(x, y)
    optimizer.build(model.trainable_variables)
    with pytest.raises(ValueError, match="3 gradients"):
        tf.function(own_step(model, lambda gradients: optimizer.apply(gradients[:3])))(x, y)


def test_keras_method_keeps_its_signature():
    model, x, y = dense(EARLY["AdamW"])
    recomputed(model).train_on_batch(x, y)
    assert list(inspect.signature(keras.optimizers.Optimizer.apply).parameters) == [
        "self",
        "grads",
        "trainable_variables",
    ]


WEIGHTS = 12 * 4 * 2**20


def needed(name, enabled):
    """The median peak of a step above what is there between steps, and what is predicted."""
    model, x, y = dense(EARLY[name], units=1024, layers=12)
    plan = halves(model) if enabled else None
    if enabled:
        tfgc.enable(model, plan)
    model.optimizer.build(model.trainable_variables)
    step = tf.function(lambda x, y: model.train_step((x, y)), autograph=False)
    predicted = tfgc.estimate(model, 8, plan)
    # Updates run side by side: from step to step the peak differs by up to four of twelve gradients.
    most = memory.peak(step, tf.constant(x), tf.constant(y), steps=15, of=statistics.median)
    return most, predicted.needed_bytes - predicted.fixed_bytes


@pytest.mark.gate
@pytest.mark.parametrize("name", each("AdamW", of=("AdamW", "momentum", "weight decay", "Lion")))
def test_a_step_needs_a_buffer_of_each_weight_less(name):
    """Of twelve equal weights, where few gradients are there at a time."""
    plain, _ = memory.alone(needed, name, False)
    less, predicted = memory.alone(needed, name, True)
    assert less < plain - 0.4 * WEIGHTS
    assert less <= 1.02 * predicted
