"""Reading, splitting and enabling models: what a user's model can be made of."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from equality import assert_equal, check_enabled, fresh, in_turn, noise, train
from models import DividedByMask, nested, ops_as_layers, shared, unet

import tfgc
from tfgc._errors import OptionError
from tfgc._framework import graph_optimizer
from tfgc._tracing import keras_graph

L = keras.layers


def nested_frozen_inference():
    """The transfer-learning idiom: the base is always called with training=False."""
    base = keras.Sequential([keras.Input((6,)), L.Dense(6), L.BatchNormalization(), L.Dropout(0.5)], name="base")
    inputs = keras.Input((6,))
    return keras.Model(inputs, L.Dense(4)(L.Dropout(0.2)(base(inputs, training=False))))


def dictionaries():
    a, b = keras.Input((6,), name="a"), keras.Input((3,), name="b")
    x = L.Dense(4)(L.Dense(64, "gelu")(L.Dense(64, "gelu")(L.Concatenate()([L.Dense(5)(a), b]))))
    return keras.Model({"a": a, "b": b}, {"out": x, "side": L.Dense(2)(b), "same": b})


def masks_of_several_inputs():
    inputs = keras.Input((6,), dtype="int32")
    x = L.Dense(4, activation="gelu")(L.Embedding(9, 4, mask_zero=True)(inputs))
    return keras.Model(inputs, L.Dense(2)(DividedByMask()([L.Dense(4)(x), x])))


X = noise(8, 6)
MODELS = {
    unet: noise(4, 16, 16, 3),
    nested: X,
    nested_frozen_inference: X,
    shared: X,
    ops_as_layers: X,
    dictionaries: {"a": X, "b": noise(8, 3)},
    masks_of_several_inputs: tf.constant(np.arange(48).reshape(8, 6) % 9),
}


def targets(build):
    model = fresh(build)
    return [noise(*y.shape, seed=4) for y in tf.nest.flatten(model(MODELS[build]))]


@pytest.mark.parametrize(("build", "mode"), in_turn(MODELS))
def test_enabled_model_trains_as_the_plain_one(build, mode):
    # They have a bias whose gradient is zero but for rounding.
    with graph_optimizer.off() if build in (nested_frozen_inference, shared, unet) else contextlib.nullcontext():
        check_enabled(build, MODELS[build], targets(build), mode, segments=4)


@pytest.mark.parametrize("build", MODELS)
def test_parts_compose_to_the_model(build):
    model = fresh(build)
    nodes = {op: (list(op._inbound_nodes), list(op._outbound_nodes)) for op in model.operations}
    for n in (1, 3, 4):
        parts = tfgc.split(model, n)
        assert len(parts) == n
        assert all(type(part).__name__ == "Functional" for part in parts)
        x = MODELS[build]
        for part in parts:
            x = part(x)
        tf.nest.map_structure(np.testing.assert_array_equal, x, model(MODELS[build]))
    assert nodes == {op: (op._inbound_nodes, op._outbound_nodes) for op in model.operations}


@pytest.mark.gate
@pytest.mark.parametrize("name", ["DenseNet121", pytest.param("NASNetMobile", marks=pytest.mark.slow)])
def test_parts_of_applications_compose(name):
    model = getattr(keras.applications, name)(weights=None, input_shape=(32, 32, 3), classes=5)
    counts = [len(op._inbound_nodes) for op in model.operations]
    expected = model(x := noise(2, 32, 32, 3))
    crossing = []
    for part in tfgc.split(model, 5):
        x = part(x)
        crossing.append(len(tf.nest.flatten(x)))
    np.testing.assert_array_equal(x, expected)
    assert counts == [len(op._inbound_nodes) for op in model.operations]
    if name == "NASNetMobile":
        assert max(crossing) > 3


def test_split_by_a_plan_and_training_the_parts_by_hand():
    """The hand-written loop of the README: recomputed parts, one tape."""
    model = fresh(unet)
    plan = tfgc.plan(model, strategy="manual", keep=[model.layers[3].name, model.layers[7].name])
    parts = [tfgc.recompute(part) for part in tfgc.split(model, plan)]
    assert len(parts) == len(plan.segments)

    def call(x, training):
        for part in parts:
            x = part(x, training=training)
        return x

    with graph_optimizer.off():
        plain = train(fresh(unet), MODELS[unet], targets(unet), graph=True)
        assert_equal(plain, train(model, MODELS[unet], targets(unet), call=call), exact=True)


def test_manual_cuts_behind_each_call_of_a_nested_model():
    inner = keras.Input((6,))
    block = keras.Model(inner, L.Dense(6, name="b")(L.Dense(6, name="a")(inner)), name="block")
    inputs = keras.Input((6,))
    model = keras.Model(inputs, L.Dense(2, name="head")(block(block(L.Dense(6, name="stem")(inputs)))))
    for keep, sizes in (
        (["block"], [6, 4, 2]),
        (["block:1"], [10, 2]),
        (["block/a"], [4, 4, 4]),
        (["stem", "block"], [2, 4, 4, 2]),
    ):
        plan = tfgc.plan(model, strategy="manual", keep=keep)
        assert [len(segment.nodes) for segment in plan.segments] == sizes


def test_passing_tensors_keep_their_dtype_in_split_models():
    inputs = keras.Input((3,), dtype="float64")
    x = inputs
    for _ in range(3):
        x = L.Dense(6)(x)
    model = keras.Model(inputs, L.Dense(4, dtype="float64")(L.Concatenate(dtype="float64")([x, inputs])))
    y = tf.constant(np.random.default_rng(0).normal(size=(2, 3)))
    expected = model(y)
    for part in tfgc.split(model, 2):
        y = part(y)
    np.testing.assert_array_equal(expected, y)


def test_a_part_is_saved_and_loaded_like_any_model(tmp_path):
    model = fresh(unet)
    first, second = tfgc.split(model, 2)
    x = first(MODELS[unet])
    for called_again in (False, True):
        if called_again:
            model.layers[-1](keras.Input(model.layers[-1].input.shape[1:]))
        second.save(tmp_path / "part.keras")
        np.testing.assert_array_equal(keras.models.load_model(tmp_path / "part.keras")(x), second(x))
    nodes = [(list(op._inbound_nodes), list(op._outbound_nodes)) for op in model.operations]
    assert second.get_config()["name"] == second.name
    assert nodes == [(op._inbound_nodes, op._outbound_nodes) for op in model.operations]


def test_the_config_of_a_part_is_its_own_each_time(tmp_path):
    inputs = keras.Input((3,), name="x")
    h = L.Dense(6)(inputs)
    for _ in range(3):
        h = L.Dense(6)(h)
    model = keras.Model(inputs, L.Concatenate()([h, inputs]), name="net")  # `x` passes through the first part
    parts = tfgc.split(model, 2)
    parts[0].trainable = False
    for part in parts:
        assert part.get_config() == part.get_config()
        part.save(tmp_path / "part.keras")
        loaded = keras.models.load_model(tmp_path / "part.keras")
        assert loaded.trainable == part.trainable
        assert [layer.name for layer in loaded.layers] == [layer.name for layer in part.layers]
        assert [t.name for t in loaded.inputs] == [t.name for t in part.inputs]
    assert [t.name for t in parts[1].inputs] == ["x", "net_part1_input1"]
    assert [layer.trainable for layer in parts[1].layers] == [True] * len(parts[1].layers)


def test_twenty_rounds_leave_no_trace():
    model = fresh(unet)
    before = [(list(op._inbound_nodes), list(op._outbound_nodes)) for op in model.operations]
    attributes = set(vars(model))
    for _ in range(20):
        tfgc.enable(model, strategy="uniform")
        tfgc.disable(model)
    assert before == [(op._inbound_nodes, op._outbound_nodes) for op in model.operations]
    assert set(vars(model)) - attributes <= {"train_function"}
    assert "call" not in vars(model)


def test_enabling_twice_replaces_the_plan_and_disabling_twice_is_harmless():
    model = fresh(unet)
    tfgc.enable(model, strategy="uniform")
    tfgc.enable(model, tfgc.plan(model, strategy="uniform", segments=3))
    assert tfgc.status(model).enabled
    tfgc.disable(model)
    assert tfgc.disable(model) is model


@pytest.mark.parametrize("several", [False, True])
def test_a_nested_model_called_by_keyword_is_flattened(several):
    """KerasHub's Gemma 3 calls its backbone so; it was an IndexError."""

    def build():
        names = ["left", "right"][: 1 + several]
        inside = {name: keras.Input((6,), name=name) for name in names}
        inner = keras.Model(inside, L.Dense(6, "gelu")(sum(inside.values())), name="inner")
        given = {name: keras.Input((6,), name=name) for name in names}
        return keras.Model(given, L.Dense(4)(inner(inputs=given)))

    model = fresh(build)
    assert "inner/dense" in [node.name for node in keras_graph.Program(model).graph.nodes]
    tfgc.enable(model, strategy="uniform", segments=2, verbose=0)
    x = {name: noise(8, 6) for name in model.input}
    np.testing.assert_allclose(model(x, training=True), fresh(build)(x, training=True), rtol=1e-5)


@pytest.mark.filterwarnings("ignore:.*does not support masking:UserWarning")  # Keras, of its own models
def test_nested_model_on_masked_inputs():
    def build():
        encoder = keras.Sequential([keras.Input((5, 4)), L.LSTM(6, return_sequences=True), L.LSTM(6)], name="encoder")
        inputs = keras.Input((5,), dtype="int32")
        return keras.Model(inputs, L.Dense(4)(encoder(L.Embedding(9, 4, mask_zero=True)(inputs))))

    tokens = tf.constant(np.random.default_rng(0).integers(0, 3, (8, 5)), "int32")
    check_enabled(build, tokens, [noise(8, 4)], "eager", segments=3)


class Doubled(L.Layer):
    """Adds what it makes in its own dtype."""

    def call(self, x):
        return x + tf.ones_like(x, self.compute_dtype)


def test_a_nested_model_that_casts_its_input_is_planned_and_trains_as_plainly():
    def build():
        inner = keras.Input((6,))
        block = keras.Model(inner, L.Dense(6)(Doubled()(inner)))
        inputs = keras.Input((6,))
        return keras.Model(inputs, L.Dense(2)(block(L.Dense(6, dtype="float64")(inputs))))

    assert tfgc.plan(build(), 8).batch_size == 8
    check_enabled(build, X, [noise(8, 2, seed=4)], "graph")


class Twice(keras.Model):
    """Does more than its graph."""

    def __call__(self, *args, **kwargs):
        return 2.0 * super().__call__(*args, **kwargs)


@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_a_nested_model_with_a_call_operator_of_its_own_is_called(mode):
    def build():
        inputs = x = keras.Input((6,))
        for _ in range(2):
            inner = keras.Input((6,))
            x = Twice(inner, L.Dense(6)(L.Dense(6, activation="tanh")(inner)))(x)
        return keras.Model(inputs, L.Dense(2)(x))

    check_enabled(build, X, [noise(8, 2, seed=4)], mode)


def test_sizes_by_input_shapes_or_example():
    inputs = keras.Input((None, 4), name="sequence")
    model = keras.Model(inputs, L.Dense(2)(L.LSTM(8)(L.LSTM(8, return_sequences=True)(inputs))))
    for given in ((2,), ()):
        with pytest.raises(OptionError, match="input_shapes"):
            tfgc.plan(model, *given, strategy="sqrt")
    by_shape = tfgc.plan(model, 2, input_shapes={"sequence": (10, 4)})
    assert by_shape.strategy == "optimal"
    assert by_shape.outlook.plain_bytes > 7 * 2 * 10 * 8 * 4  # what the first LSTM keeps of each step
    assert tfgc.plan(model, example=np.zeros((2, 10, 4))) == by_shape
    assert tfgc.plan(model, example=(np.zeros((2, 10, 4)), np.zeros((2, 2)))) == by_shape
    tfgc.enable(model, by_shape)
    for shapes, message in [
        ({"sequences": (1, 4)}, "no input 'sequences'; did you mean 'sequence'"),
        ({"sequence": (10, 5)}, "does not fit"),
    ]:
        with pytest.raises(OptionError, match=message):
            tfgc.plan(model, 2, input_shapes=shapes)
    with pytest.raises(OptionError, match="not both"):
        tfgc.plan(model, input_shapes={}, example=np.zeros((2, 10, 4)))
    with pytest.raises(OptionError, match="example is a batch of 2"):
        tfgc.plan(model, 3, example=np.zeros((2, 10, 4)))


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = L.Dense(2)

    def call(self, x):
        return self.dense(x)


def empty():
    inputs = keras.Input((4,))
    return keras.Model(inputs, inputs)


def weightless():
    return keras.Sequential([keras.Input((3,)), L.ReLU(), L.Softmax()])


def fixed_batch():
    return keras.Sequential([keras.Input(batch_shape=(4, 3)), L.Dense(2), L.Dense(2)])


def frozen():
    model = keras.Sequential([keras.Input((3,)), L.Dense(2), L.Dense(2)])
    model.trainable = False
    return model


@pytest.mark.parametrize("use", [tfgc.plan, lambda m: tfgc.enable(m, tfgc.plan(m)), lambda m: tfgc.split(m, 2)])
@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Subclassed, "layers="),
        (lambda: keras.Sequential([L.Dense(2)], name="open"), "'open' is not built"),
        (lambda: 3, "3 is not a keras.Model"),
    ],
)
def test_models_that_cannot_be_read(use, model, message):
    with pytest.raises(tfgc.UnsupportedModelError, match=message):
        use(model())


@pytest.mark.parametrize(
    ("use", "error", "message"),
    [
        (lambda m: tfgc.plan(m, 2.5), OptionError, "batch_size=2.5"),
        (lambda m: tfgc.plan(fixed_batch(), 8), OptionError, r"declared for batches of 4; .* keras.Input\(shape\)"),
        (lambda m: tfgc.plan(m, strategy="uniform", segments=99), OptionError, "the model has 2 nodes"),
        (lambda m: tfgc.split(m, tfgc.plan(fresh(unet))), tfgc.PlanMismatchError, "another model"),
        (lambda m: tfgc.enable(m, tfgc.plan(m), strategy="sqrt"), OptionError, "not both"),
        (lambda m: tfgc.enable(m, budget=10**9, strategy="sqrt"), OptionError, "does not honour a budget"),
        (lambda m: tfgc.train_step(m, "mse", "sgd", plan=4), OptionError, "4 is not a tfgc.Plan"),
        (lambda m: tfgc.plan(m, strategy="manual"), OptionError, "needs the option keep"),
        (lambda m: tfgc.train_step(frozen(), "mse", "sgd"), tfgc.UnsupportedModelError, "no trainable weights"),
        (lambda m: tfgc.train_step(weightless(), "mse", "sgd"), tfgc.UnsupportedModelError, "no trainable weights"),
        (lambda m: tfgc.enable(weightless()), tfgc.UnsupportedModelError, "no (trainable )?weights"),
        (lambda m: tfgc.plan(empty(), 8), tfgc.UnsupportedModelError, "no (trainable )?weights"),
        (lambda m: tfgc.estimate(empty(), 8), tfgc.UnsupportedModelError, "no (trainable )?weights"),
    ],
)
def test_bad_input(use, error, message):
    with pytest.raises(error, match=message):
        use(keras.Sequential([keras.Input((3,)), L.Dense(2), L.Dense(2)]))
