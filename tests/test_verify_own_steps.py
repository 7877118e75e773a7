"""`tfgc.verify` of models with a `train_step` of their own: what their optimizers get, and all that it leaves."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from equality import fresh, in_turn, noise, states
from models import Subclassed

import tfgc
from tfgc._training import layer_calls

L = keras.layers
X = noise(16, 8)


def part(name):
    layers = [L.Dense(64, activation="gelu"), L.Dropout(0.3), L.Dense(64), L.BatchNormalization(momentum=0.5)]
    return keras.Sequential([keras.Input((8,)), *layers, L.Dense(8)], name=name)


class Pair(keras.Model):
    """As GANs are: no `call`, two updates in a step, of which the second reads what the first has changed."""

    def __init__(self):
        super().__init__()
        self.first, self.second = part("first"), part("second")
        self.seen = keras.metrics.Mean()

    def compile(self, **kwargs):
        super().compile(**kwargs)
        self.optimizers = [keras.optimizers.Adam(0.1), keras.optimizers.Adam(0.1)]

    def train_step(self, x):
        losses = []
        for trained, optimizer in zip((self.second, self.first), self.optimizers):
            with tf.GradientTape() as tape:
                made = self.second(self.first(x + keras.random.normal(x.shape), training=True), training=True)
                losses.append(tf.reduce_mean((made - 1) ** 2))
            gradients = tape.gradient(losses[-1], trained.trainable_weights)
            optimizer.apply_gradients(zip(gradients, trained.trainable_weights))
        self.seen.update_state(losses[0])
        return {"losses": losses, "seen": self.seen.result()}


class Halves(Subclassed):
    """Updates in a branch, and by hand."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x, training=True) - y) ** 2) + tf.add_n(self.losses)
        weights = self.trainable_variables
        gradients = tape.gradient(loss, [w.value for w in weights])
        half = len(weights) // 2

        def update():
            self.optimizer.apply([g * 1.0 for g in gradients[:half]], weights[:half])
            return True

        self.optimizer.build(weights[:half])
        tf.cond(loss > 0, update, lambda: False)
        for weight, gradient in zip(weights[half:], gradients[half:]):
            weight.assign_sub(0.01 * gradient)
        return {"loss": loss}


def compiled(kind):
    model = fresh(kind)
    model.compile()
    return model


@pytest.mark.gate
@pytest.mark.parametrize(
    "mode",
    [
        "graph",
        *(pytest.param(mode, marks=pytest.mark.gate) for mode in ("eager", "compiled")),
        pytest.param("xla", marks=pytest.mark.slow),
    ],
)
def test_a_step_with_two_updates_is_equal_and_leaves_the_model_as_it_was(mode):
    model = compiled(Pair)
    model.train_step(tf.constant(X))
    held = [*states(model), *(v for o in model.optimizers for v in o.variables), *model.seen.variables]
    before = [np.array(v.numpy()) for v in held]
    plan = tfgc.plan(model, example=X)
    assert plan.operations
    verdict = tfgc.verify(model, plan, X, modes=mode, steps=2)
    assert verdict, verdict
    assert verdict.loss == "that of the model's own train_step"
    assert verdict.compared == {"gradient": 16, "metric": 3, "weight": 16, "state": 8, "seed": 3}
    for variable, value in zip(held, before):
        np.testing.assert_array_equal(variable.numpy(), value)


@tf.custom_gradient
def thousandth_more(x):
    return tf.identity(x), lambda upstream: upstream * 1.001


WRONG = {
    "outputs": (lambda call, x: call(x) * 1.001, {"metric", "gradient", "weight"}),
    "gradients only": (lambda call, x: thousandth_more(call(x)), {"gradient", "weight"}),
    "state moves twice": (lambda call, x: (call(x), call(x))[1], {"state", "seed"}),
}


def wrong(monkeypatch, change):
    """Let layers that are recomputed run `change(call, x)`, where `call` is their original code."""

    def call(self, x, **kwargs):
        return change(lambda x: self._original(x, **kwargs), x)

    monkeypatch.setattr(layer_calls.LayerCall, "__call__", call)


@pytest.mark.gate
@pytest.mark.parametrize(("name", "mode"), in_turn(WRONG, ("eager", "graph")))
def test_a_wrong_step_is_found(name, mode, monkeypatch):
    change, kinds = WRONG[name]
    wrong(monkeypatch, change)
    verdict = tfgc.verify(compiled(Pair), None, X, layers=["first", "second"], modes=mode, steps=1)
    assert not verdict
    assert kinds <= {difference.kind for difference in verdict.differences}


def batch():
    return X, noise(16, 4, seed=2)


@pytest.mark.gate
@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_gradients_that_no_optimizer_gets_show_in_the_weights(mode):
    model = fresh(Halves)
    model.compile("sgd")
    verdict = tfgc.verify(model, None, batch(), layers=["block_0", "block_1"], modes=mode, steps=2)
    assert verdict, verdict
    assert verdict.compared.get("gradient", 0) == (len(model.trainable_variables) // 2 if mode == "eager" else 0)


@pytest.mark.gate
def test_a_wrong_gradient_that_no_optimizer_gets_is_found(monkeypatch):
    wrong(monkeypatch, lambda call, x: thousandth_more(call(x)))
    model = fresh(Halves)
    model.compile("sgd")
    verdict = tfgc.verify(model, None, batch(), layers=["block_2"], modes="graph", steps=1)
    assert not verdict
    assert {difference.kind for difference in verdict.differences} == {"weight"}


@pytest.mark.gate
@pytest.mark.parametrize(
    ("loss", "shown"),
    [
        ("mse", "'mse'"),
        (keras.losses.MeanSquaredError(), "MeanSquaredError"),
        (keras.losses.mean_squared_error, "mean_squared_error"),
        (["mse"], "['mse']"),
    ],
    ids=["name", "object", "function", "list"],
)
def test_a_loss_asks_for_calls_of_the_model_in_place_of_its_step(loss, shown):
    model = fresh(Halves)
    model.compile("sgd")
    verdict = tfgc.verify(model, None, batch(), layers=["block_0"], modes="graph", steps=1, loss=loss)
    assert verdict.loss == shown
    assert "weight" not in verdict.compared


def test_a_batch_that_the_step_does_not_take_is_an_error_that_says_so():
    model = fresh(Halves)
    model.compile("sgd")
    with pytest.raises(tfgc.UnsupportedModelError, match=r"train_step of 'halves' cannot be traced .* or give loss="):
        tfgc.verify(model, None, X)


@pytest.mark.parametrize("within", ["function", "loop"])
def test_what_draws_inside_of_a_function_or_a_loop_is_repeated_op_by_op(within):
    @tf.function
    def noised(x):
        return x + tf.random.normal(tf.shape(x))

    def looped(x):
        return tf.while_loop(lambda i, _: i < 2, lambda i, y: (i + 1, y + tf.random.normal(tf.shape(y))), (0, x))[1]

    class Noised(Subclassed):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self((noised if within == "function" else looped)(x), training=True) - y) ** 2)
            self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
            return {"loss": loss}

    model = compiled(Noised)
    verdict = tfgc.verify(model, None, batch(), layers=["block_0"], steps=2)
    assert verdict, verdict
    assert verdict.modes == ("eager",)


def test_inputs_of_different_lengths_are_planned_by_their_batch():
    atoms, bonds = keras.Input((4,)), keras.Input((4,))
    parts = [keras.ops.sum(L.Dense(64, "gelu")(L.Dense(64, "gelu")(x)), 0, keepdims=True) for x in (atoms, bonds)]
    model = keras.Model([atoms, bonds], L.Dense(1)(parts[0] + parts[1]))
    assert tfgc.verify(model, None, ([noise(6, 4), noise(9, 4)],), modes="graph")


class Triplets(keras.Model):
    """Takes what is no input of the model: three images, of which each is a batch for it."""

    def train_step(self, data):
        with tf.GradientTape() as tape:
            anchor, near, far = (self.embedded(data[name]) for name in ("anchor", "near", "far"))
            loss = tf.reduce_mean(tf.nn.relu((anchor - near) ** 2 - (anchor - far) ** 2 + 1.0))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}

    def embedded(self, images):
        return self(images, training=True)


class OneOfThree(Triplets):
    def embedded(self, images):
        return super().embedded(images) if images.shape[0] > 1 else images[:, :1]


class Called(L.Layer):
    def __init__(self, model):
        super().__init__()
        self.models = (model,)

    def call(self, x):
        return self.models[0](x, training=True)


class Wrapped(Triplets):
    def embedded(self, images):
        return Called(self)(images)


@pytest.mark.parametrize(("kind", "samples"), [(Triplets, 16), (OneOfThree, 1), (Wrapped, 16)])
def test_a_batch_that_only_the_step_takes_is_planned_for_the_step(kind, samples):
    def build():
        inputs = x = keras.Input((8,))
        for _ in range(3):
            x = L.Dense(8)(L.Dense(64, activation="gelu")(x))
        return kind(inputs, x)

    model = compiled(build)
    images = {"anchor": X, "near": noise(samples, 8, seed=2), "far": noise(samples, 8, seed=3)}
    verdict = tfgc.verify(model, None, images, modes="graph", steps=1)
    assert verdict, verdict
