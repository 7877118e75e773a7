"""`enable` of models without a graph of layers, planned in the first training step."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from equality import mostly, noise

import tfgc

L = keras.layers
X, Y = noise(16, 12, 8), noise(16, 4, seed=2)


class Block(L.Layer):
    """What its inside keeps is many times its input. Its layers are made when it is built."""

    def build(self, shape):
        self.norm, self.wide, self.narrow = L.LayerNormalization(), L.Dense(64, activation="gelu"), L.Dense(shape[-1])
        self.drop = L.Dropout(0.2)

    def call(self, x):
        return x + self.drop(self.narrow(self.wide(self.norm(x))))


class Net(keras.Model):
    """Calls its blocks in a loop; `call` takes no `training`."""

    def __init__(self):
        super().__init__(name="net")
        self.blocks = [Block() for _ in range(4)]
        self.pool, self.head = L.GlobalAveragePooling1D(), L.Dense(4)

    def call(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(self.pool(x))


class Trained(Net):
    """Has a training step of its own, which calls the parts apart."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            h = x
            for block in self.blocks:
                h = block(h, training=True)
            loss = tf.reduce_mean((self.head(self.pool(h)) - y) ** 2)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


def made(kind=Net, **compiled):
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(7)
    model = kind()
    model.compile(**{"optimizer": "sgd", "loss": "mse", **compiled})
    return model


def recomputed(model):
    (status,) = tfgc.status(model).plans
    return [node for segment in status.plan.segments if segment.mode == "recompute" for node in segment.nodes]


def after_fit(model):
    model.fit(X, Y, batch_size=8, epochs=2, shuffle=False, verbose=0)
    return [np.array(v) for v in [*model.variables, *model.optimizer.variables]]


WAYS = {"run_eagerly": True}, {"jit_compile": True}, {"steps_per_execution": 2}


@pytest.mark.gate
@pytest.mark.parametrize(
    ("kind", "compiled"),
    [
        (Net, {}),
        *zip((Trained, Net), WAYS),
        pytest.param(Trained, {}, marks=pytest.mark.slow),
        *(pytest.param(kind, way, marks=pytest.mark.slow) for kind, way in zip((Net, Trained, Net), WAYS)),
        pytest.param(Trained, WAYS[-1], marks=pytest.mark.slow),
    ],
)
def test_fit_gives_the_weights_of_plain_fit(kind, compiled):
    plain = after_fit(made(kind, **compiled))
    model = tfgc.enable(made(kind, **compiled), verbose=0)
    for expected, found in zip(plain, after_fit(model)):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    (status,) = tfgc.status(model).plans
    assert status.predicted_bytes < 0.7 * status.plain_bytes
    assert any("block" in node for node in recomputed(model))
    assert status.batch_size == 8


def test_blocks_recompute_though_a_dropout_without_training_says_inference_for_all_after_it(replays):
    """Keras's `fit` calls a model whose `call` takes no `training` without; the first Dropout then sets it to False."""
    model = made()
    model(X[:1])
    tfgc.enable(model, layers=model.blocks)
    model.fit(X, Y, batch_size=8, verbose=0)
    assert len(replays) == len(model.blocks)
    replays.clear()
    model.evaluate(X, Y, verbose=0)
    model.predict(X, verbose=0)
    assert not replays


@pytest.mark.gate
def test_a_budget_takes_the_fastest_plan_that_fits():
    model = tfgc.enable(made(), verbose=0)
    after_fit(model)
    (least,) = tfgc.status(model).plans
    some = (least.predicted_bytes + least.plain_bytes) // 2
    tfgc.enable(model, budget=some, verbose=0).fit(X, Y, batch_size=8, verbose=0)
    (between,) = tfgc.status(model).plans
    assert least.predicted_bytes < 0.7 * some < between.predicted_bytes <= some  # an allocator adds to it
    assert 0 < between.overhead < least.overhead
    model = tfgc.enable(made(), budget=least.predicted_bytes // 2)
    with pytest.raises(tfgc.InfeasibleBudgetError, match=r"the smallest budget that works is .* set by node '.*block"):
        model.fit(X, Y, batch_size=8, verbose=0)


@pytest.mark.gate
@pytest.mark.parametrize("functional", [False, True])
def test_a_budget_chooses_among_named_layers(functional):
    def build():
        model = made()
        if functional:
            x = keras.Input(X.shape[1:])
            model = keras.Model(x, model.head(model.pool(model.blocks[3](model.blocks[2](model.blocks[1](x))))))
            model.compile("sgd", "mse")
        else:
            model(X[:1])
        return model

    model = build()
    tfgc.enable(model, layers="block_[12]", budget="90%", verbose=0)
    model.fit(X, Y, batch_size=8, verbose=0)
    names = {part for node in recomputed(model) for part in node.split("/") if part.startswith("block")}
    assert len(names) == 1, names
    with pytest.raises(tfgc.InfeasibleBudgetError):
        tfgc.enable(build(), layers="block_1", budget="30%").fit(X, Y, batch_size=8, verbose=0)


@pytest.mark.gate
def test_disable_gives_the_model_its_own_methods_back():
    model = tfgc.enable(made(Trained), verbose=0)
    after_fit(model)
    tfgc.disable(model)
    assert not {"call", "train_step"} & set(vars(model))
    assert not any("call" in vars(layer) for layer in model._flatten_layers())
    assert str(tfgc.status(model)) == "net: not enabled"
    tfgc.enable(model, verbose=0)
    with pytest.raises(tfgc.OptionError, match="has no layer 'net/block'; layers have paths once the model is built"):
        tfgc.enable(Net(), layers="net/block")


class OfTensors(L.Layer):
    """Its `build` makes variables of tensors: of constants, of a seed, and of another variable."""

    def build(self, shape):
        self.scale = keras.Variable(keras.ops.ones(shape[-1:]) * 2, trainable=False)
        self.kernel = keras.Variable(keras.random.normal((shape[-1], shape[-1]), seed=1))
        self.average = keras.Variable(self.kernel * 0.5, trainable=False)

    def call(self, x):
        self.average.assign(0.9 * self.average + 0.1 * self.kernel)
        return keras.ops.tanh(x @ self.kernel) * self.scale + x @ self.average


class Drawn(L.Layer):
    """Its `build` makes a variable of a draw that changes the state of a generator."""

    def build(self, shape):
        self.kernel = keras.Variable(keras.random.normal((shape[-1], shape[-1])))

    def call(self, x):
        return x @ self.kernel


def led_by(first):
    class Led(Net):
        def __init__(self):
            super().__init__()
            self.first = first()

        def call(self, x):
            return super().call(self.first(x))

    return Led


def gru():
    return L.GRU(8, stateful=True, return_sequences=True)


def both_ways():
    return L.Bidirectional(L.LSTM(4, stateful=True, return_sequences=True))


@pytest.mark.parametrize(
    ("first", "eager"),
    [
        (OfTensors, False),
        (gru, True),
        *(pytest.param(*other, marks=pytest.mark.slow) for other in [(OfTensors, True), (gru, False)]),
        *(pytest.param(both_ways, eager, marks=pytest.mark.slow) for eager in (False, True)),
    ],
)
def test_variables_that_layers_make_of_tensors_when_they_are_built(first, eager):
    """Planning builds the layers, and was refused, since the graph that it traces could not make such variables."""
    plain = after_fit(made(led_by(first), run_eagerly=eager, jit_compile=False))
    model = tfgc.enable(made(led_by(first), run_eagerly=eager, jit_compile=False), verbose=0)
    found = after_fit(model)
    assert len(plain) == len(found)
    for expected, weight in zip(plain, found):
        np.testing.assert_allclose(weight, expected, rtol=1e-4, atol=1e-6)
    assert any("block" in name for name in recomputed(model))


def test_a_variable_of_a_draw_without_a_seed_needs_a_call_on_a_batch_first():
    with pytest.raises(tfgc.UnsupportedModelError, match="call the model once on a batch first"):
        tfgc.plan(made(led_by(Drawn)), example=(X, Y))
    model = made(led_by(Drawn))
    model(X[:8])
    after_fit(tfgc.enable(model, verbose=0))
    assert any("block" in name for name in recomputed(model))


@pytest.mark.gate
def test_verify_proves_the_plan_of_least_memory():
    model = made()
    model(X[:1])
    assert tfgc.verify(model, None, (X, Y), modes="graph", steps=2)


@pytest.mark.gate
def test_models_that_are_not_built_are_planned_whatever_was_built_before():
    """Keras notes variables to initialize for each thread; the planning thread must not add to the caller's list."""
    found = []
    for enabled in (False, True, True):
        model = Net()
        model.compile("sgd", "mse")
        if enabled:
            tfgc.enable(model, verbose=0)
        model.fit(X, Y, batch_size=16, verbose=0)
        found += [(plan.predicted_bytes, plan.plan) for plan in tfgc.status(model).plans]
    assert len(found) == 2
    assert found[0][0] == found[1][0]
    assert all(any(segment.mode == "recompute" for segment in plan.segments) for _, plan in found)


class Tower(Net):
    """Its blocks hold nothing but weights."""

    def __init__(self):
        keras.Model.__init__(self)
        self.pool, self.head = L.GlobalAveragePooling1D(), L.Dense(4)
        self.blocks = [keras.Sequential([L.Dense(64, "gelu"), L.Dense(8)]) for _ in range(4)]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("use", mostly("fit", modes=["fit", "verify"]))
def test_a_step_calls_another_enabled_model_that_it_does_not_hold(use):
    critic = made(Tower)
    critic(X)
    tfgc.enable(critic, verbose=0)

    class Generator(Tower):
        def train_step(self, data):
            x, _ = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(critic(x * self(x, training=True)[:, None, :1]) ** 2)
            self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
            return {"loss": loss}

    model = made(Generator)
    if use == "verify":
        assert tfgc.verify(model, None, (X, Y), modes="graph")
        return
    tfgc.enable(model, verbose=0)
    model.fit(X, Y, verbose=0)
    assert tfgc.status(model).plans
    assert str(tfgc.status(critic)) == "tower: enabled, trains in a step that is planned as a whole"


@pytest.mark.parametrize("first", mostly("evaluate", "a call", modes=["evaluate", "predict", "a call"]))
def test_what_does_not_train_makes_no_plan(first):
    """The `call` of `Net` takes no `training`, so that Keras says nothing of it in `evaluate` and `predict`."""
    model = tfgc.enable(made(), verbose=0)
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(4)
    {"evaluate": model.evaluate, "predict": model.predict, "a call": lambda *_, **__: model(X[:1])}[first](
        data, verbose=0
    )
    assert not tfgc.status(model).plans
    model.fit(X, Y, batch_size=8, verbose=0)
    assert [plan.batch_size for plan in tfgc.status(model).plans] == [8]


def test_validation_in_larger_batches_leaves_the_plan():
    model = tfgc.enable(made(), budget="80%", verbose=0)
    model.fit(X, Y, batch_size=8, validation_data=(X, Y), validation_batch_size=16, verbose=0)
    assert [plan.batch_size for plan in tfgc.status(model).plans] == [8]


@pytest.mark.parametrize("kind", mostly(Net, "functional", modes=[Net, Trained, "functional"]))
def test_fit_with_larger_batches_is_planned_again_within_a_budget(kind):
    x = inputs = L.Input((12, 8))
    for _ in range(4):
        x = L.Dense(64, activation="gelu")(x)
    functional = keras.Model(inputs, L.Dense(4)(L.GlobalAveragePooling1D()(x)))
    model = tfgc.enable(made(lambda: functional) if kind == "functional" else made(kind), budget="80%", verbose=0)
    sizes = []
    for batch_size in (6, 4, 12, 6):  # all leave a remainder, so that the batch is open
        model.fit(X, Y, batch_size=batch_size, verbose=0)
        sizes.append([plan.batch_size for plan in tfgc.status(model).plans])
    assert sizes == [[6], [6], [12], [12]]


@pytest.mark.parametrize("kind", ["calls", "segments"])
def test_where_nothing_was_saved_a_much_larger_batch_is_planned_again(kind):
    wide = [L.Dense(256, "gelu") for _ in range(4)]
    layer = L.Dense(1)

    class Wide(keras.Model):
        def call(self, x):
            for dense in self.blocks:
                x = dense(x)
            return self.head(x)

    if kind == "segments":
        model = keras.Sequential([keras.Input((256,)), *wide, layer])
    else:
        model = Wide()
        model.blocks, model.head = wide, layer
    model.compile("sgd", "mse", run_eagerly=True)
    tfgc.enable(model, verbose=0)
    rows = noise(4096, 256)
    with pytest.warns(tfgc.NothingSavedWarning):
        model.train_on_batch(rows[:1], rows[:1, :1])
    model.train_on_batch(rows, rows[:, :1])
    assert tfgc.status(model).plans[-1].batch_size == 4096


def test_a_number_among_the_arguments_of_a_call_stays_a_number():
    class Repeated(Net):
        def call(self, x, times=1, scale=1.0):
            for _ in range(times):
                x = super().call(x)[:, None] * scale + x[..., :4][:, :1]
                x = tf.concat([x, x], -1)
            return x

    def gradients(model):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(X, times=2, scale=0.5) ** 2)
        return tape.gradient(loss, [v.value for v in model.trainable_variables])

    plain, model = made(Repeated), made(Repeated)
    plain(X), model(X)
    model.set_weights(plain.get_weights())
    expected, found = gradients(plain), gradients(tfgc.enable(model, verbose=0))
    assert tfgc.status(model).plans
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_inputs_by_name_in_another_order_than_the_alphabets_keep_their_sizes():
    """The last batch is smaller, so that Keras traces steps with open sizes."""

    def weights(enabled):
        keras.utils.clear_session(free_memory=False)
        keras.utils.set_random_seed(7)
        inputs = {name: keras.Input((size,), name=name) for name, size in {"b": 6, "a": 8}.items()}
        x = keras.layers.Concatenate()([keras.layers.Dense(64, "gelu")(x) for x in inputs.values()])
        model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Dense(64, "gelu")(x)))
        model.compile("sgd", "mse")
        if enabled:
            tfgc.enable(model, verbose=0)
        model.fit({"b": noise(200, 6), "a": noise(200, 8)}, noise(200, 1), batch_size=128, shuffle=False, verbose=0)
        return model.get_weights()

    for ours, plain in zip(weights(True), weights(False), strict=True):
        np.testing.assert_allclose(ours, plain, rtol=1e-5, atol=1e-7)
