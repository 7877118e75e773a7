"""Outputs that no loss uses: what leads to them alone has no gradient, not one of zero, by which weights decay."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from equality import fresh, in_turn, noise

import tfgc

L = keras.layers
X, Y = noise(16, 8), noise(16, 2)


def heads():
    x = inputs = keras.Input((8,))
    for _ in range(4):
        x = L.Dense(16, activation="gelu")(x)
    side = L.Dense(8, activation="tanh", name="side")(x)
    outputs = [
        L.Dense(2, name="used")(x),
        L.Dense(2, name="unused")(side),
        L.Dense(2, name="both")(L.Concatenate()([x, side])),
    ]
    return keras.Model(inputs, outputs)


PLANS = {
    "default": {},
    "sqrt": {"strategy": "sqrt"},
    "keep_all": {"strategy": "keep_all"},
    "layers": {"layers": L.Dense},
}
WAYS = ("eager loop", "graph")


def shown(model, way):
    """Whether each weight has a gradient, and its norm, by losses of one output after the other by one tape."""
    weights = [v.value for v in model.trainable_variables]

    def step():
        with tf.GradientTape(persistent=True) as tape:
            outputs = model(X, training=True)
            losses = [tf.reduce_mean((outputs[i] - Y) ** 2) for i in (0, 1, 2, 0)]
        return [tape.gradient(loss, weights) for loss in losses]

    found = (tf.function(step) if way == "graph" else step)()
    return [[None if g is None else np.linalg.norm(g) for g in each] for each in found]


@pytest.mark.parametrize(("plan", "way"), in_turn(PLANS, WAYS))
def test_what_leads_to_nothing_else_has_no_gradient(plan, way):
    plain, model = shown(fresh(heads), way), fresh(heads)
    assert [None in each for each in plain] == [True] * 4
    tfgc.enable(model, **PLANS[plan], verbose=0)
    for expected, found in zip(plain, shown(model, way), strict=True):
        assert [g is None for g in found] == [g is None for g in expected]
        # Norms of float32, of compiled and of plain code.
        np.testing.assert_allclose(*([g for g in each if g is not None] for each in (found, expected)), rtol=1e-4)


@pytest.mark.gate
@pytest.mark.parametrize("plan", ["default", "sqrt"])
def test_weight_decay_leaves_it_alone(plan):
    def moved(enabled):
        model = fresh(heads)
        before = [v.numpy() for v in model.trainable_variables]
        if enabled:
            tfgc.enable(model, **PLANS[plan], verbose=0)
        model.compile(keras.optimizers.AdamW(0.01, weight_decay=0.1), ["mse", None, None], run_eagerly=True)
        with pytest.warns(UserWarning, match="Gradients do not exist for variables .*unused/kernel"):
            model.fit(X, [Y, Y, Y], epochs=3, shuffle=False, verbose=0)
        return {v.path: np.abs(v - old).max() for v, old in zip(model.trainable_variables, before)}

    plain, ours = moved(False), moved(True)
    assert plain["unused/kernel"] == plain["side/kernel"] == 0
    assert ours["unused/kernel"] == ours["side/kernel"] == ours["both/kernel"] == 0
    # AdamW divides by the size of gradients, which magnifies the roundings of small ones.
    assert ours["used/kernel"] == pytest.approx(plain["used/kernel"], rel=1e-3) != 0
