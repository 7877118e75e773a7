"""`check_replay=True`: a second run that differs is an error that names its segment, its layer and both values."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from equality import MODES, assert_equal, fresh, in_turn, noise, plain_steps, train
from models import Subclassed, built, everything, halves, plan_for

import tfgc
from tfgc._pure import replay_checksums
from tfgc._tracing import keras_graph

L = keras.layers
X, Y = noise(16, 8), [noise(16, 4, seed=2)]


def masked():
    inputs = keras.Input((5,), dtype="int32")
    x = L.LSTM(6, return_sequences=True)(L.Embedding(9, 4, mask_zero=True)(inputs))
    return keras.Model(inputs, L.Dense(4)(L.LSTM(6)(L.Dropout(0.3)(x))))


TOKENS = tf.constant(np.random.default_rng(0).integers(0, 3, (16, 5)), "int32")


@pytest.mark.gate
@pytest.mark.parametrize(("build", "mode"), in_turn([everything, masked], first=2))
def test_repeatable_models_pass_and_train_as_the_plain_one(build, mode):
    x = TOKENS if build is masked else X
    plain = plain_steps(build, x, Y, graph=mode != "eager")
    model = fresh(build)
    plan = tfgc.plan(model, strategy="uniform", segments=3)
    tfgc.enable(model, plan, compile_segments=mode == "compiled", check_replay=True)
    assert_equal(plain, train(model, x, Y, graph=mode == "graph"), exact=mode == "eager")


@pytest.mark.parametrize(
    "policy", ["mixed_float16", *(pytest.param(p, marks=pytest.mark.slow) for p in ("mixed_bfloat16", "float64"))]
)
def test_rounding_is_no_difference(policy):
    keras.config.set_dtype_policy(policy)
    model = fresh(everything)
    tfgc.enable(model, strategy="uniform", check_replay=True)
    train(model, X, Y, graph=True)


@pytest.mark.gate
@pytest.mark.parametrize("mode", ["compiled", *(pytest.param(m, marks=pytest.mark.slow) for m in ("eager", "graph"))])
def test_nested_plans_are_checked_at_every_level(mode):
    plain = plain_steps(everything, X, Y, graph=mode != "eager")
    model = fresh(everything)
    graph = keras_graph.read(model)
    plan = plan_for(graph, halves(tuple(node.name for node in graph.nodes)))
    tfgc.enable(model, plan, compile_segments=mode == "compiled", check_replay=True)
    assert_equal(plain, train(model, X, Y, graph=mode == "graph"), exact=mode == "eager")


class Changing(L.Layer):
    """Reads a switch that is no variable of Keras, so that its second run may differ."""

    def __init__(self, switch, **kwargs):
        super().__init__(**kwargs)
        self.switch = switch

    def call(self, x):
        return x * self.switch


def changing(switch, name="culprit"):
    return lambda: keras.Sequential(
        [keras.Input((8,)), L.Dense(8, name="before"), Changing(switch, name=name), L.Dense(8), L.Dense(4)]
    )


@pytest.mark.parametrize("mode", MODES)
def test_a_plain_variable_that_moves_between_the_runs_is_reported_with_its_layer(mode):
    switch = tf.Variable(2.0)
    model = fresh(changing(switch))
    plan = tfgc.plan(model, strategy="uniform", segments=2)
    tfgc.enable(model, plan, compile_segments=mode == "compiled", check_replay=True)

    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(X, training=True) ** 2)
        switch.assign_add(1.0)
        return tape.gradient(loss, [v.value for v in model.trainable_variables])

    error = tfgc.ReplayMismatchError
    if mode == "graph":
        step, error = tf.function(step), tf.errors.InvalidArgumentError
    with pytest.raises(error, match=r"segment 0(.|\n)*culprit(.|\n)*checksum") as caught:
        step()
    told = str(caught.value).partition("checksum")[2]
    first, second = [float(word) for word in re.findall(r"-?\d+\.\d+(?:e[+-]?\d+)?", told)][:2]
    assert first != second


def test_a_layer_of_a_subclassed_model_is_reported_too():
    draws = np.random.default_rng(0)

    class Drawing(L.Layer):
        def call(self, x):
            return x + draws.standard_normal(16).astype("float32")

    def build():
        model = Subclassed()
        model.blocks[1].drop = Drawing(name="drawing")
        return model

    model = fresh(built(build, X))
    tfgc.enable(model, layers=["block_1"], compile_segments=False, check_replay=True)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(X, training=True) ** 2)
    with pytest.raises(tfgc.ReplayMismatchError, match="block_1"):
        tape.gradient(loss, [v.value for v in model.trainable_variables])


def test_shapes_are_reported_with_the_layer():
    sizes = []

    class Shrinking(L.Layer):
        def call(self, x):
            return x[:, : sizes.pop(0) if sizes else 8]

    class Whole(L.Layer):
        def call(self, x):
            return keras.ops.sum(x, axis=-1, keepdims=True)

    inputs = keras.Input((8,))
    x = Whole()(Shrinking(name="culprit")(L.Dense(8)(inputs)))
    model = keras.Model(inputs, L.Dense(4)(L.Dense(8)(x)))
    tfgc.enable(model, tfgc.plan(model, strategy="uniform", segments=2), compile_segments=False, check_replay=True)
    model(X, training=True)
    sizes[:] = [8, 4]
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(X, training=True))
    with pytest.raises(tfgc.ReplayMismatchError, match=r"culprit: float32\(16, 8\) became culprit: float32\(16, 4\)"):
        tape.gradient(loss, [v.value for v in model.trainable_variables])


def test_xla_is_refused():
    model = fresh(everything)
    tfgc.enable(model, strategy="uniform", check_replay=True)
    model.compile("sgd", "mse", jit_compile=True)
    with pytest.raises(tfgc.OptionError, match="XLA"):
        model.fit(X, Y[0], verbose=0)


@pytest.mark.parametrize("value", ["no", 1])
def test_what_is_no_truth_value_is_refused(value):
    with pytest.raises(tfgc.OptionError, match=f"check_replay={value!r}: must be True or False"):
        tfgc.enable(fresh(everything), strategy="uniform", check_replay=value)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64", "complex64", "int32", "bool"])
def test_checksums_see_shuffles_and_masks_and_forgive_rounding(dtype):
    random = np.random.default_rng(0)
    values = random.standard_normal((64, 5, 32)) * 3

    def differ(a, b):
        tensors = [tf.cast(tf.constant(x), dtype) for x in (a, b)]
        try:
            first, again = ([replay_checksums.checksum(t)] for t in tensors)
            replay_checksums.raise_if_different("segment 0", ["layer"], first, again, [])
        except tfgc.ReplayMismatchError:
            return True
        return False

    assert not differ(values, values)
    if dtype == "bool":
        values = values > 0
        assert differ(values, ~values)
        return
    assert differ(values, values[::-1])
    assert differ(values, values[:, ::-1])
    assert differ(values, values[..., ::-1])
    assert differ(values, values * (random.uniform(size=values.shape) < 0.9))
    if dtype != "int32":
        rounding = replay_checksums._epsilon(tf.as_dtype(dtype).real_dtype) * random.uniform(-1, 1, values.shape)
        assert not differ(values, values * (1 + rounding))
