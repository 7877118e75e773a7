"""Chosen layers of any model: `enable(layers=...)`, on subclassed models and KerasHub-style backbones."""

import dataclasses
import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from equality import MODES, assert_equal, fresh, in_turn, noise, plain_steps, train
from models import Residual, Subclassed, built

import tfgc
from tfgc._training import layer_selectors

L = keras.layers
X, Y = noise(16, 8), [noise(16, 4, seed=2)]
TOKENS = tf.constant(np.random.default_rng(3).integers(0, 4, (8, 6)), "int32")


@pytest.mark.parametrize("way", ["segments", "layers"])
def test_inference_under_a_tape(way, replays):
    """Layers that recompute one by one do so under every tape; segments run the original code."""
    model = keras.Sequential([keras.Input((8,)), L.Dense(8), L.Dense(4)])
    model(X)

    def gradient():
        with tf.GradientTape() as tape:
            tape.watch(X)
            loss = tf.reduce_sum(model(X, training=False) ** 2)
        return tape.gradient(loss, X)

    expected = gradient()
    if way == "layers":
        tfgc.enable(model, layers=L.Dense)
    else:
        tfgc.enable(model, tfgc.plan(model, example=X, strategy="uniform"))
    np.testing.assert_allclose(gradient(), expected, rtol=1e-5, atol=1e-6)
    assert bool(replays) == (way != "segments")
    replays.clear()
    model(X, training=False)
    assert not replays


class TransformerLayer(L.Layer):
    """As KerasHub writes them: attention and a feed-forward part in one layer, masks taken as arguments."""

    def __init__(self, width, heads, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.attention = L.MultiHeadAttention(heads, width // heads, dropout=0.2)
        self.norms = [L.LayerNormalization(), L.LayerNormalization()]
        self.up, self.down = L.Dense(4 * width, activation="gelu"), L.Dense(width)
        self.drop = L.Dropout(0.2)

    def call(self, x, padding_mask=None, training=None):
        mask = None if padding_mask is None else padding_mask[:, None, :]
        y = self.attention(self.norms[0](x), x, attention_mask=mask, use_causal_mask=True, training=training)
        x = x + self.drop(y, training=training)
        return x + self.drop(self.down(self.up(self.norms[1](x))), training=training)


class Backbone(keras.Model):
    def __init__(self):
        super().__init__()
        self.embedding = L.Embedding(9, 8, mask_zero=True)
        self.transformer_layers = [TransformerLayer(8, 2, name=f"layer_{i}") for i in range(2)]
        self.head = L.Dense(4)

    def call(self, tokens, training=None):
        mask = tokens != 0
        x = self.embedding(tokens)
        for layer in self.transformer_layers:
            x = layer(x, padding_mask=mask, training=training)
        return self.head(x[:, 0])


def functional_with_transformer_layers():
    inputs = keras.Input((6,), dtype="int32")
    x = L.Embedding(9, 8)(inputs)
    for i in range(3):
        x = TransformerLayer(8, 2, name=f"layer_{i}")(x, padding_mask=keras.ops.not_equal(inputs, 0))
    return keras.Model(inputs, L.Dense(4)(x[:, 0]))


CASES = {
    "blocks by name": (built(Subclassed, X), X, ["block_0", "block_1", "block_2"]),
    "parts of blocks": (built(Subclassed, X), X, ["out", "block_1"]),
    "backbone": (built(Backbone, TOKENS), TOKENS, ["layer_0", "layer_1"]),
    "layers of a functional model": (functional_with_transformer_layers, TOKENS, ["layer_0", "layer_2"]),
}


@pytest.mark.gate
@pytest.mark.parametrize(("case", "mode"), in_turn(CASES))
def test_chosen_layers_train_as_the_plain_ones(case, mode):
    build, x, chosen = CASES[case]
    y = [noise(x.shape[0], 4, seed=2)]
    plain = plain_steps(build, x, y, graph=True, lr=0.01)
    model = fresh(build)
    assert tfgc.enable(model, layers=chosen) is model
    ours = train(model, x, y, graph=mode == "graph", lr=0.01)
    assert_equal(plain, ours, exact=mode == "eager")


@pytest.mark.gate
@pytest.mark.parametrize(("case", "mode"), in_turn(["layers of a functional model"]))
def test_transformer_layer_in_a_functional_graph_has_its_inside_replayed(case, mode):
    build, x, _ = CASES[case]
    y = [noise(x.shape[0], 4, seed=2)]
    plain = plain_steps(build, x, y, graph=True, lr=0.01)
    model = fresh(build)
    plan = tfgc.plan(model, strategy="uniform", segments=4)
    nodes = [name for segment in plan.segments for name in segment.nodes]
    assert all(any(name in node for node in nodes) for name in ("layer_0", "layer_1", "layer_2"))
    tfgc.enable(model, plan)
    # The mask has four uses, all without a gradient.
    assert_equal(plain, train(model, x, y, graph=mode == "graph", lr=0.01), exact=mode == "eager")


def test_a_model_not_yet_built_is_built_by_its_first_call():
    model = fresh(Subclassed)
    tfgc.enable(model, layers=["block_0", "block_2"])
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(X, training=True) ** 2)
    gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
    assert len(gradients) == 3 * 6 + 2
    assert all(g is not None for g in gradients)


def runs(step, kind):
    """How often the graph of a step runs operations of a type, in the functions that it calls, too."""
    definition = tf.function(step).get_concrete_function().graph.as_graph_def()
    functions = {function.signature.name: function.node_def for function in definition.library.function}

    def count(nodes):
        called = [functions[node.attr["f"].func.name] for node in nodes if node.attr["f"].func.name]
        return sum(node.op == kind for node in nodes) + sum(map(count, called))

    return count(definition.node)


def test_a_layer_inside_of_a_chosen_one_does_not_run_three_times():
    """Nested scopes of Keras's remat do run each layer three times."""

    class Inner(L.Layer):
        def call(self, x):
            return keras.ops.tanh(x)

    class Holder(L.Layer):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.inner = Inner(name="inner")

        def call(self, x):
            return self.inner(x) * 2.0

    inputs = keras.Input((8,))
    model = keras.Model(inputs, L.Dense(4)(L.Dense(8)(Holder(name="holder")(L.Dense(8)(inputs)))))

    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(X, training=True))
        return tape.gradient(loss, [v.value for v in model.trainable_variables])

    tfgc.enable(model, layers=["holder", "inner"])
    assert runs(step, "Tanh") == 2
    tfgc.enable(model, tfgc.plan(model, strategy="uniform", segments=2))
    assert "call" not in vars(model.get_layer("holder"))


class Numbered(L.Layer):
    """Is handed Python numbers and an object."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense = L.Dense(8)

    def call(self, x, step=0, alpha=1.0, more=None):
        return keras.ops.tanh(self.dense(x)) * (step + 1) * alpha * (1.0 if more is None else more["scale"])


class Stepping(keras.Model):
    def __init__(self):
        super().__init__()
        self.block, self.head = Numbered(name="block"), L.Dense(4)
        self.alpha = 1.0

    def call(self, x, training=None):
        self.alpha *= 0.5
        for i in range(3):
            x = self.block(x, step=i, alpha=self.alpha, more={"scale": 2.0 + i} if i == 2 else None)
        return self.head(x)


def test_python_numbers_are_those_of_each_call():
    build = built(Stepping, X)
    plain, ours = fresh(build), fresh(build)
    expected = train(plain, X, Y, lr=0.01)
    tfgc.enable(ours, layers=["block"])
    # The block's weights have three uses.
    assert_equal(expected, train(ours, X, Y, lr=0.01), exact=False)


class Fixed(L.Layer):
    """Keras lets `training=False` of a sublayer stay for all calls that follow in the outer one."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.before, self.norm, self.after = L.Dropout(0.5), L.BatchNormalization(), L.Dropout(0.5)
        self.dense = L.Dense(8)

    def call(self, x):
        return self.after(self.norm(self.dense(self.before(x)), training=False))


class Siblings(keras.Model):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.drop = Fixed(name="first"), Fixed(name="second"), L.Dropout(0.5)
        self.head = L.Dense(4)

    def call(self, x, training=None):
        return self.head(self.drop(self.second(self.first(x))))


@pytest.mark.parametrize(("names", "mode"), in_turn([["first"], ["first", "second"]]))
def test_a_sublayer_with_another_training_argument(names, mode):
    build = built(Siblings, X)
    expected = plain_steps(build, X, Y, graph=True)
    model = fresh(build)
    tfgc.enable(model, layers=names)
    assert_equal(expected, train(model, X, Y, graph=mode == "graph"), exact=mode == "eager")


class Remembering(keras.Model):
    """Hands a tensor over by an attribute."""

    def __init__(self):
        super().__init__()
        self.encoder, self.head = L.Dense(8), L.Dense(4)
        self.block = Recalling(name="block")

    def call(self, x, training=None):
        self.block.memory = self.encoder(x)
        self.block.small = tf.reduce_mean(x, axis=0)
        y = self.head(self.block(x))
        self.block.memory = self.block.small = None
        return y


class Recalling(L.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense = L.Dense(8)
        self.memory = self.small = None

    def call(self, x):
        memory = 0.0 if self.memory is None else self.memory + self.small
        return keras.ops.tanh(self.dense(x)) * memory


def test_a_tensor_handed_over_by_an_attribute_is_that_of_each_call():
    build = built(Remembering, X)
    plain, ours = fresh(build), fresh(build)
    tfgc.enable(ours, layers=["block"])

    def gradients(model, x):
        with tf.GradientTape() as tape:
            model.block.memory = model.encoder(x)
            model.block.small = tf.reduce_mean(x, axis=0)
            loss = tf.reduce_sum(model.head(model.block(x)) ** 2)
        return tape.gradient(loss, [v.value for v in model.trainable_variables])

    for seed in (1, 2, 3):
        for a, b in zip(
            gradients(plain, noise(16, 8, seed=seed)), gradients(ours, noise(16, 8, seed=seed)), strict=True
        ):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_a_part_enabled_before_its_whole_follows_the_plan_of_the_whole():
    inner = keras.Sequential([keras.Input((8,)), L.Dense(8), L.Dropout(0.3), L.Dense(8)], name="part")
    inputs = keras.Input((8,))
    model = keras.Model(inputs, L.Dense(4)(L.Dense(8)(inner(inputs))))
    tfgc.enable(inner, strategy="uniform")
    plan = tfgc.plan(model, strategy="uniform", segments=2)
    assert any("part" in node for node in plan.segments[0].nodes)
    tfgc.enable(model, plan)
    assert "call" not in vars(inner)
    tfgc.disable(model)
    assert "call" not in vars(model)


def test_disable_and_twenty_rounds_leave_no_trace():
    model = fresh(built(Subclassed, X))
    before = [set(vars(layer)) for layer in model._flatten_layers()]
    for _ in range(20):
        tfgc.enable(model, layers=["block_0"])
        tfgc.enable(model, layers=model.blocks)
        tfgc.disable(model)
    after = [set(vars(layer)) for layer in model._flatten_layers()]
    assert all(now - known <= {"train_function"} for known, now in zip(before, after))


def test_inference_runs_the_original_code():
    model = fresh(built(Subclassed, X))
    expected = model(X, training=False)
    tfgc.enable(model, layers=model.blocks)
    np.testing.assert_array_equal(model(X, training=False), expected)
    np.testing.assert_allclose(model.predict(X, verbose=0), expected, rtol=1e-5, atol=1e-6)


@functools.cache
def unchanged():
    """A model for tests that choose layers of it and no more."""
    return fresh(built(Subclassed, X))


def broken(layer):
    return layer.width > 3


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        (["blok_0"], "has no layer 'blok_0'; did you mean 'block_0'"),
        ("blok_[0-9]", r"has no layer that matches 'blok_\[0-9\]'; did you mean 'block_0'"),
        (["*/blok_0"], r"has no layer that matches '\*/blok_0'; did you mean 'block_0'"),
        ("nothing_*", r"has no layer that matches 'nothing_\*'; there are '\w+', '\w+'"),
        ([L.Dense(2, name="stranger")], "has no layer <Dense name=stranger"),
        ([type("Dens", (), {})], "no layer of class Dens; did you mean 'Dense'"),
        (lambda layer: False, "has no layer for which <lambda> is True"),
        (broken, r"broken failed for layer '.*': AttributeError: .*has no attribute 'width'"),
        (lambda layer: layer.name, r"<lambda> returned 'block_0' for layer 'subclassed/block_0'.*True or False"),
        ([3], "3 is no layer, name, pattern, class or function"),
        (3, "3 is no layer, name, pattern, class or function"),
        ([], "name at least one"),
    ],
)
def test_layers_that_cannot_be_chosen(chosen, message):
    model = unchanged()
    with pytest.raises(tfgc.OptionError, match=message):
        tfgc.enable(model, layers=chosen)
    assert not [layer for layer in model._flatten_layers() if "call" in vars(layer)]


def test_the_error_of_a_function_of_layers_is_chained():
    with pytest.raises(tfgc.OptionError) as caught:
        tfgc.enable(unchanged(), layers=broken)
    assert isinstance(caught.value.__cause__, AttributeError)


@pytest.mark.gate
def test_a_cell_with_dropout_is_refused_and_its_rnn_is_not():
    inputs = keras.Input((5, 4))
    model = keras.Model(inputs, L.Dense(4)(L.LSTM(6, dropout=0.3, name="rnn")(inputs)))
    with pytest.raises(tfgc.OptionError, match="name the RNN"):
        tfgc.enable(model, layers=["lstm_cell"])
    assert tfgc.verify(model, None, noise(8, 5, 4), layers=["rnn"], modes=MODES)


def middle(layer):
    return layer.name == "block_1"


SELECTORS = [
    ("block_2", ["block_2"]),
    ("block_*", ["block_0", "block_1", "block_2"]),
    ("block_[02]", ["block_0", "block_2"]),
    ("*/block_?/out", ["block_0/out", "block_1/out", "block_2/out"]),
    ([Residual], ["block_0", "block_1", "block_2"]),
    (L.BatchNormalization, [f"block_{i}/batch_normalization{n}" for i, n in enumerate(["", "_1", "_2"])]),
    (middle, ["block_1"]),
    ([middle, "block_0", L.BatchNormalization, "*_2/out", Residual], None),
]


@pytest.mark.parametrize(("chosen", "paths"), SELECTORS, ids=range(len(SELECTORS)))
def test_what_selectors_mean(chosen, paths):
    model = unchanged()
    found = [layer.path.removeprefix(f"{model.name}/") for layer in layer_selectors.choose(model, chosen)]
    if paths is None:
        blocks, norms = [f"block_{i}" for i in range(3)], [layer.norm.path for layer in model.blocks]
        paths = [*blocks, *(path.removeprefix(f"{model.name}/") for path in norms), "block_2/out"]
    assert sorted(found) == sorted(paths)


def test_the_model_itself_is_meant_by_name_alone():
    model = unchanged()
    for selector in ("*", L.Layer, lambda layer: True):
        assert model not in layer_selectors.choose(model, selector)
    with pytest.raises(tfgc.OptionError, match="no layer of class Subclassed"):
        layer_selectors.choose(model, Subclassed)
    assert layer_selectors.choose(model, [model.name]) == [model]


def test_a_pattern_leaves_out_a_cell_with_dropout():
    inputs = keras.Input((5, 4))
    model = keras.Model(inputs, L.Dense(4)(L.LSTM(6, dropout=0.3, name="lstm")(inputs)))
    assert layer_selectors.choose(model, "lstm*") == [model.get_layer("lstm")]
    with pytest.raises(tfgc.OptionError, match="name the RNN"):
        tfgc.enable(model, layers=L.LSTMCell)


class AnyStructure(L.Layer):
    """Takes a tensor, a pair or a dictionary, and weights or none."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense, self.drop = L.Dense(8), L.Dropout(0.3)

    def call(self, x, weights=None, training=None):
        y = keras.ops.tanh(self.drop(self.dense(tf.add_n(tf.nest.flatten(x))), training=training))
        return {"y": y, "x": x} if isinstance(x, dict) else y if weights is None else y * weights


class TakesAnything(keras.Model):
    def __init__(self):
        super().__init__()
        self.block, self.head = AnyStructure(name="block"), L.Dense(4)

    def call(self, x, training=None):
        y = tf.nest.flatten(self.block(self.block(x, training=training), training=training))
        return self.head(self.block(y[-1], weights=tf.ones_like(y[-1]) * 0.5, training=training))


@pytest.mark.gate
@pytest.mark.parametrize("mode", MODES)
def test_inputs_that_change_structure_between_calls(mode):
    """Nothing is wrong with them: each kind of call is looked at by itself."""
    inputs = X, [X, 2 * X], {"a": X, "b": 3 * X}, [X], X[:5], {"b": X, "a": X}

    def run(model):
        def gradients(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(model(x, training=True) ** 2)
            return tape.gradient(loss, [v.value for v in model.trainable_variables])

        step = tf.function(gradients) if mode == "graph" else gradients
        return tf.nest.flatten([step(x) for _ in range(2) for x in inputs])

    def build():
        model = TakesAnything()
        model(X)
        keras.utils.set_random_seed(3)
        return model

    plain = run(fresh(build))
    model = fresh(build)
    tfgc.enable(model, layers=["block"])
    for a, b in zip(plain, run(model), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@dataclasses.dataclass
class Output:
    hidden: tf.Tensor
    loss: tf.Tensor


class GivesAnObject(L.Layer):
    def __init__(self):
        super().__init__()
        self.dense = L.Dense(8, activation="tanh")

    def call(self, x):
        hidden = self.dense(x)
        return Output(hidden, tf.reduce_mean(hidden**2))


class ReadsObjects(keras.Model):
    def __init__(self):
        super().__init__()
        self.blocks = [GivesAnObject() for _ in range(3)]

    def call(self, x):
        losses = 0.0
        for block in self.blocks:
            output = block(x)
            x, losses = output.hidden, losses + output.loss
        return x + losses


@pytest.mark.parametrize("mode", MODES)
def test_a_layer_that_returns_an_object_of_tensors_is_kept(mode):
    x = noise(4, 8)
    plain = plain_steps(built(ReadsObjects, x), x, [noise(4, 8, seed=2)], graph=True, steps=1)
    model = fresh(built(ReadsObjects, x))
    tfgc.enable(model, layers=GivesAnObject)
    with pytest.warns(tfgc.NotReplayableWarning, match=r"it returns a 'Output', an object that holds tensors"):
        ours = train(model, x, [noise(4, 8, seed=2)], graph=mode == "graph", steps=1)
    assert_equal(plain, ours, exact=mode == "eager")
