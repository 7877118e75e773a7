"""Small models with each of Keras's optimizers, and what their updates make."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfgc

optimizers = keras.optimizers
EARLY = {
    "AdamW": lambda: optimizers.AdamW(0.01),
    "momentum": lambda: optimizers.SGD(0.1, momentum=0.9),
    "Nesterov": lambda: optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "weight decay": lambda: optimizers.SGD(0.1, weight_decay=1e-2),
    "averages": lambda: optimizers.SGD(0.1, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=2),
    "Lion": lambda: optimizers.Lion(0.01, weight_decay=1e-2),
    "RMSprop": lambda: optimizers.RMSprop(0.01, centered=True, momentum=0.5),
    "Muon": lambda: optimizers.Muon(0.01),
}
OTHERS = {
    "Adam": lambda: optimizers.Adam(0.01, amsgrad=True),
    "Adafactor": lambda: optimizers.Adafactor(0.01),
    "Nadam": lambda: optimizers.Nadam(0.01),
    "Ftrl": lambda: optimizers.Ftrl(0.01),
    "global norm": lambda: optimizers.AdamW(0.01, global_clipnorm=0.5),
    "loss scale": lambda: optimizers.LossScaleOptimizer(optimizers.AdamW(0.01)),
    "accumulation": lambda: optimizers.AdamW(0.01, gradient_accumulation_steps=2),
}
ALL = {**EARLY, **OTHERS}


def each(*fast, of=ALL):
    """Names of optimizers, of which some are in the fast suite."""
    return [name if name in fast else pytest.param(name, marks=pytest.mark.slow) for name in of]


def dense(make, units=16, layers=4, batch=8):
    model = keras.Sequential([keras.Input((units,)), *(keras.layers.Dense(units, "gelu") for _ in range(layers))])
    model.compile(make(), "mse", jit_compile=False)
    draw = np.random.default_rng(0)
    return model, *draw.normal(size=(2, batch, units)).astype("float32")


def halves(model):
    return tfgc.plan(model, 8, strategy="uniform", segments=2)


def weights_after(model, x, y, steps=4):
    for _ in range(steps):
        model.train_on_batch(x, y)
    return [*model.get_weights(), *(v.numpy() for v in model.optimizer.variables)]


def graph_of(step, *arguments):
    return tf.function(step, autograph=False).get_concrete_function(*arguments).graph
