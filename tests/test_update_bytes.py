"""What the update of weights holds besides weights, slots and gradients is part of the predicted step."""

import keras
import memory
import numpy as np
import pytest
import tensorflow as tf
from equality import mostly

import tfgc
from tfgc._cli.commands import explain
from tfgc._costs import update_bytes
from tfgc._costs.update_bytes import Update
from tfgc._planning import sweep

optimizers = keras.optimizers
KNOWN = {
    "Adam": (optimizers.Adam, Update(0.0, False, 2.0, 2.0)),
    "Adam that clips each gradient": (lambda: optimizers.Adam(clipnorm=1.0), Update(0.0, False, 3.0, 2.0)),
    "AdamW": (optimizers.AdamW, Update(1.0, False, 2.0, 2.0)),
    "SGD": (optimizers.SGD, Update(0.0, False, 1.0, 1.0)),
    "momentum": (lambda: optimizers.SGD(momentum=0.9), Update(1.0, False, 0.0, 1.0)),
    "weight decay": (lambda: optimizers.SGD(weight_decay=1e-3), Update(1.0, False, 1.0, 1.0)),
    "averages": (lambda: optimizers.SGD(use_ema=True), Update(1.0, False, 1.0, 1.0)),
    "Lion": (optimizers.Lion, Update(2.0, False, 2.0, 2.0)),
    "Adagrad": (optimizers.Adagrad, Update(0.0, False, 2.0, 1.75)),
    "RMSprop": (optimizers.RMSprop, Update(1.0, False, 2.0, 1.75)),
    "global norm": (lambda: optimizers.Adam(global_clipnorm=1.0), Update(0.0, True, 2.5, 3.0)),
    "loss scale": (lambda: optimizers.LossScaleOptimizer(optimizers.Adam()), Update(0.0, True, 2.0, 2.0)),
    "accumulation": (lambda: optimizers.AdamW(gradient_accumulation_steps=2), Update(0.0, True, 2.0, 2.0)),
}


@pytest.mark.parametrize("name", KNOWN)
def test_what_is_computed_of_slots_and_weights_alone_is_held(name):
    make, expected = KNOWN[name]
    optimizer = make()
    assert update_bytes.of(optimizer) == expected
    assert not optimizer.built


class Failing(optimizers.SGD):
    def update_step(self, gradient, variable, learning_rate):
        raise RuntimeError("not yet")


def test_an_update_that_cannot_be_traced_counts_for_nothing():
    assert update_bytes.of(Failing()) == Update()


def dense(optimizer="sgd"):
    model = keras.Sequential([keras.Input((1024,)), *(keras.layers.Dense(1024) for _ in range(6))])
    model.compile(optimizer, "mse", jit_compile=False)
    return model


WEIGHTS = 6 * 4 * 2**20


def measured(name):
    """What a step needs, as a part of what is predicted."""
    model = dense(KNOWN[name][0]())
    step = tf.function(model.train_step)
    x = tf.ones((8, 1024))
    model.optimizer.build(model.trainable_variables)
    predicted = tfgc.estimate(model, 8)
    return (memory.peak(step, (x, x)) + predicted.fixed_bytes) / predicted.needed_bytes


@pytest.mark.gate
@pytest.mark.parametrize("name", mostly("AdamW", "global norm", modes=["SGD", "AdamW", "momentum", "global norm"]))
def test_a_step_needs_no_more_than_predicted(name):
    assert 0.75 < memory.alone(measured, name) <= 1.02


@pytest.mark.parametrize("mode", ["graph", "xla", "compiled"])
def test_early_results_and_all_gradients_count_where_they_are_held(mode):
    """A loop applies gradients when all are there, one weight after the other; XLA computes the rest late."""

    def more(name):
        used = [KNOWN[n][0]() for n in ("SGD", name)]
        plain, other = (tfgc.estimate(dense(one), 8, mode=mode, optimizer=one) for one in used)
        return other.peak_bytes - other.fixed_bytes - (plain.peak_bytes - plain.fixed_bytes)

    early, late = more("weight decay"), more("global norm")
    assert early == pytest.approx(WEIGHTS if mode == "graph" else 0, rel=0.01)
    assert late == pytest.approx(0 if mode == "compiled" else WEIGHTS * 5 / 6, rel=0.03)


def table(optimizer):
    """Whose gradient is of some rows, which most updates make as large as the table."""
    layers = [keras.layers.Embedding(50_000, 64), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(4)]
    model = keras.Sequential([keras.Input((8,), dtype="int32"), *layers])
    model.compile(optimizer, "mse", jit_compile=False)
    return model, np.arange(64).reshape(8, 8).astype("int32"), np.ones((8, 4), "float32")


class Head(keras.Model):
    """Whose weights are nearly all in one layer."""

    def __init__(self):
        super().__init__()
        self.inner, self.out = keras.layers.Dense(256, "gelu"), keras.layers.Dense(20_000)

    def call(self, x):
        return self.out(self.inner(x))


def head(optimizer):
    model, x = Head(), np.ones((4, 256), "float32")
    model(x)
    model.compile(optimizer, "mse", jit_compile=False)
    return model, x, np.ones((4, 20_000), "float32")


def needed_of(build, name):
    """What a step holds beyond weights and slots, as a part of what is predicted."""
    model, x, y = build(KNOWN[name][0]())
    model.optimizer.build(model.trainable_variables)
    predicted = tfgc.estimate(model, example=(x, y))
    batch = tf.constant(x), tf.constant(y)
    step = tf.function(model.train_step)
    step(batch)  # From then on a table of which rows were updated is copied where it is read.
    # It depends on which operation runs first: about every other step of the head with Adam holds 20 MB less.
    return (memory.peak(step, batch, steps=12) + predicted.fixed_bytes) / predicted.needed_bytes


@pytest.mark.gate
@pytest.mark.parametrize(
    ("build", "name"),
    # Of a head that SGD updates, a race between the update and the gradient of its input decides what it needs.
    [
        (table, "SGD"),
        (table, "Adam"),
        (head, "Adam"),
        *(pytest.param(table, name, marks=pytest.mark.slow) for name in ("AdamW", "Adagrad")),
        pytest.param(head, "AdamW", marks=pytest.mark.slow),
    ],
)
def test_an_update_of_one_large_weight_is_counted(build, name):
    """Adam's was predicted at 38 MB for 68, and at 99 for 136. The allocator's chunks are larger than what is asked."""
    assert 0.7 < memory.alone(needed_of, build, name) < 1.17


def test_a_budget_counts_them():
    """Of the named optimizer, too, where a model is not compiled."""
    model = keras.Sequential([keras.Input((1024,)), *(keras.layers.Dense(1024, "gelu") for _ in range(6))])
    budget = tfgc.estimate(model, 2048, optimizer="adam").needed_bytes
    assert not any(s.mode == "recompute" for s in tfgc.plan(model, 2048, budget=budget, optimizer="adam").segments)
    assert any(s.mode == "recompute" for s in tfgc.plan(model, 2048, budget=budget, optimizer="adamw").segments)


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.blocks = [keras.layers.Dense(1024, "gelu") for _ in range(4)]

    def call(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def test_a_sweep_of_a_subclassed_model_counts_those_of_the_named_optimizer():
    model, x = Subclassed(), np.ones((64, 1024), "float32")
    plan = tfgc.plan(model, example=x, optimizer="lion")
    step = tfgc.estimate(model, plan=plan, example=x, optimizer="lion")
    assert sweep.sweep(model, "it", None, points=2, example=x, optimizer="lion").points[0].peak_bytes == step.peak_bytes


def test_an_explanation_of_a_saved_plan_counts_those_of_the_named_optimizer():
    model = keras.Sequential([keras.Input((256,)), *(keras.layers.Dense(256, "gelu") for _ in range(6))])
    made = tfgc.plan(model, 64, budget="100%", optimizer="lion")
    costs = {"measure": False, "optimizer": "lion", "mode": "graph"}
    explained = explain._with_figures(model, 64, made, costs, input_shapes=None)
    assert explained.outlook == made.outlook
