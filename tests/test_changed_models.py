"""Models that change after they were enabled: other layers, other settings of the same layers."""

import copy
import gc
import types
import warnings
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf
from equality import MODES, assert_equal, fresh, in_turn, noise, train

import tfgc
from tfgc._framework import graph_optimizer
from tfgc._framework.layer_settings import Settings

L = keras.layers
X = noise(8, 6)


def stack():
    return keras.Sequential([keras.Input((6,)), *(L.Dense(6, activation="tanh", name=f"dense_{i}") for i in range(5))])


def with_dropout():
    layers = [L.Dense(6, activation="tanh", name="dense_0"), L.Dropout(0.5, name="drop"), L.Dense(6), L.Dense(6)]
    return keras.Sequential([keras.Input((6,)), *layers])


def nested():
    inner = keras.Sequential([keras.Input((6,)), L.Dense(6, activation="tanh"), L.Dense(6)], name="inner")
    inputs = keras.Input((6,))
    return keras.Model(inputs, L.Dense(6)(inner(L.Dense(6, activation="tanh")(inputs))))


def add(model):
    model.add(L.Dense(6, activation="tanh", name="added"))


def pop(model):
    model.pop()
    model.pop()


def build_again(model):
    model.build((None, 6))


def add_to_nested(model):
    model.get_layer("inner").add(L.Dense(6, activation="tanh", name="added"))


def enable_lora(model):
    model.get_layer("dense_1").enable_lora(2)
    for variable in model.get_layer("dense_1").trainable_variables:
        variable.assign(tf.ones_like(variable.value) / 7)  # one of the two new kernels starts at zero


def quantize(model):
    # Keras warns of InputLayer, which has nothing to quantize.
    for layer in model.layers:
        layer.quantize("int8")


def other_activation(model):
    model.get_layer("dense_2").activation = keras.activations.relu


def other_policy(model):
    model.get_layer("dense_3").dtype_policy = "float64"


def freeze(model):
    model.get_layer("dense_1").trainable = False


def other_rate(model):
    model.get_layer("drop").rate = 0.1


def no_bias(model):
    model.get_layer("dense_2").bias = None


def other_bias(model):
    layer = model.get_layer("dense_2")
    layer._tracker.unlock()  # as Keras does for LoRA
    layer.bias = model.get_layer("dense_3").bias


def replaced_call(model):
    model.get_layer("dense_1").call = lambda x, training=None: tf.tanh(2.0 * x)


CHANGES = {
    add: stack,
    pop: stack,
    build_again: stack,
    enable_lora: stack,
    quantize: stack,
    other_activation: stack,
    other_policy: stack,
    freeze: stack,
    no_bias: stack,
    other_bias: stack,
    replaced_call: stack,
    other_rate: with_dropout,
    add_to_nested: nested,
}


def before_and_after(build, change, mode, enabled):
    """A step, a change, and a step in another trace."""
    model = fresh(build)
    if enabled:
        tfgc.enable(model, strategy="uniform")
    graph = mode == "graph" or not enabled
    record = train(model, X, [X], graph=graph, steps=1)
    keras.utils.set_random_seed(5)
    change(model)
    return record + train(model, X, [X], graph=graph, steps=1)


# Other settings are nothing new where each call runs the layers' own code.
GRAPHS = (add, pop, add_to_nested, enable_lora)
CROSSINGS = [
    pytest.param(change, mode, marks=[pytest.mark.slow] * (change is quantize))
    for change in CHANGES
    for mode in MODES
    if change in GRAPHS or mode == "compiled"
]


@pytest.mark.parametrize(("change", "mode"), CROSSINGS)
def test_a_change_is_followed(change, mode):
    plain, ours = (before_and_after(CHANGES[change], change, mode, enabled) for enabled in (False, True))
    assert_equal(plain, ours, exact=mode == "eager")


def test_another_dtype_policy_shows_in_the_output():
    """Gradients in float64 and in float32 are equal within tolerance."""
    model = fresh(stack)
    tfgc.enable(model, strategy="uniform")
    assert model(X, training=True).dtype == "float32"
    model.get_layer("dense_4").dtype_policy = "float64"
    assert model(X, training=True).dtype == model(X, training=False).dtype == "float64"


def test_training_and_inference_agree_after_a_layer_was_added():
    model = fresh(stack)
    tfgc.enable(model, strategy="uniform")
    model(X, training=True)
    add(model)
    np.testing.assert_allclose(model(X, training=True), model(X, training=False), rtol=1e-5, atol=1e-7)


def test_fit_after_a_layer_was_added_and_compiled_again():
    def fit(enabled):
        model = fresh(stack)
        if enabled:
            tfgc.enable(model, strategy="uniform")
        for _ in range(2):
            model.compile("sgd", "mse")
            loss = model.fit(X, X, verbose=0, shuffle=False).history["loss"]
            keras.utils.set_random_seed(5)
            if len(model.layers) == 5:
                add(model)
        return loss, [np.array(v) for v in model.variables]

    for a, b in zip(tf.nest.flatten(fit(False)), tf.nest.flatten(fit(True)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("layers", "fits"), [(7, True), (5, True), (2, False)])
def test_a_plan_that_was_given_cuts_where_it_did_or_is_refused(layers, fits):
    """Of three segments of six layers the second ends behind the fourth, which two layers do not have."""
    x, weights = noise(256, 64), []
    for enabled in (False, True):
        model = fresh(lambda: keras.Sequential([keras.Input((64,)), *(L.Dense(64, "gelu") for _ in range(6))]))
        if enabled:
            tfgc.enable(model, tfgc.plan(model, 256, strategy="uniform", segments=3), verbose=0)
        for _ in range(layers - 6):
            model.add(L.Dense(64, "gelu"))
        for _ in range(6 - layers):
            model.pop()
        if enabled and not fits:
            with pytest.raises(tfgc.PlanMismatchError, match=r"made for another model: .* with tfgc.plan\(model\)"):
                train(model, x, [x])
            return
        with graph_optimizer.off():
            train(model, x, [x], graph=True)
        weights.append([np.array(v) for v in model.weights])
    (plan,) = tfgc.status(model).plans
    assert plan.overhead > 0
    for ours, plain in zip(*weights, strict=True):
        np.testing.assert_array_equal(ours, plain)


def test_a_clone_and_a_copy_are_plain_models():
    model = tfgc.enable(fresh(stack), strategy="uniform")
    clone, copied = keras.models.clone_model(model), copy.deepcopy(model)
    assert not {"call"} & {*vars(clone), *vars(copied)}
    for one, other in zip(copied.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    assert "call" in vars(model)


@pytest.mark.parametrize("run_eagerly", [True, False])
def test_train_step_refuses_another_graph_and_follows_settings(run_eagerly):
    model = fresh(with_dropout)
    step = tfgc.train_step(model, "mse", "sgd", run_eagerly=run_eagerly)
    step(X, X)
    model.get_layer("drop").rate = 0.0
    expected = float(tf.reduce_mean((model(X, training=True) - X) ** 2))
    assert float(step(X, X)["loss"]) == pytest.approx(expected, rel=1e-5)
    model.get_layer("dense_0").trainable = False
    kernel = model.get_layer("dense_0").kernel.numpy()
    step(X, X)
    np.testing.assert_array_equal(model.get_layer("dense_0").kernel, kernel)
    add(model)
    with pytest.raises(tfgc.PlanMismatchError, match=r"called, and the step runs the layers .* Make a new step"):
        step(X, X)


def test_parts_refuse_a_model_that_changed_since():
    model = fresh(stack)
    parts = tfgc.split(model, 2)
    np.testing.assert_array_equal(parts[1](parts[0](X)), model(X))
    add(model)
    with pytest.raises(tfgc.PlanMismatchError, match=f"{model.name!r} has changed since it was split: split it again"):
        parts[0](X)
    parts = tfgc.split(model, 2)
    np.testing.assert_array_equal(parts[1](parts[0](X)), model(X))


def test_parts_are_not_enabled_and_go_on_to_look_at_their_model():
    model = fresh(stack)
    parts = tfgc.split(model, 2)
    assert not tfgc.status(parts[0]).enabled
    inputs = keras.Input(X.shape[1:])
    whole = keras.Model(inputs, parts[1](parts[0](inputs)))
    assert len(tfgc.plan(whole).model) == len(tfgc.plan(model).model), "the nodes of parts are planned"
    tfgc.disable(tfgc.enable(whole, strategy="uniform"))
    tfgc.disable(parts[0])
    add(model)
    with pytest.raises(tfgc.PlanMismatchError, match="split it again"):
        parts[0](X)


class Tower(keras.Model):
    def __init__(self):
        super().__init__()
        self.blocks = [L.Dense(6, activation="tanh", name=f"block_{i}") for i in range(3)]

    def call(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def exchange_blocks(model):
    model.blocks[1], model.blocks[2] = model.blocks[2], model.blocks[1]


def add_block(model):
    model.blocks.append(L.Dense(6, activation="relu", name="other"))


@pytest.mark.parametrize(("mode", "change"), in_turn(MODES, [exchange_blocks, add_block]))
def test_a_subclassed_model_gets_another_layer(change, mode):
    """Before it is built: later Keras itself refuses new layers."""

    def run(enabled):
        model = fresh(Tower)
        if enabled:
            tfgc.enable(model, layers=["block_0", "block_1"])
        change(model)
        model(X)
        graph = mode == "graph" or not enabled
        return train(model, X, [X], graph=graph, steps=1)

    assert_equal(run(False), run(True), exact=mode == "eager")


class Pair(L.Layer):
    """Holds layers in a list, whose items can be exchanged at any time."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.inside = [L.Dense(6, activation="tanh"), L.Dense(6, activation="tanh")]

    def call(self, x):
        return self.inside[1](self.inside[0](x))


@pytest.mark.parametrize(
    ("how", "mode"), in_turn([{"layers": ["pair"]}, {"strategy": "optimal"}], ["eager", "compiled"])
)
def test_a_layer_inside_of_a_layer_is_exchanged(how, mode):
    def build():
        return keras.Sequential([keras.Input((6,)), L.Dense(6), Pair(name="pair"), L.Dense(6), L.Dense(6)])

    model = fresh(build)
    tfgc.enable(model, **how)
    model(X, training=True)
    pair = model.get_layer("pair")
    pair.inside[0], pair.inside[1] = pair.inside[1], pair.inside[0]
    np.testing.assert_allclose(model(X, training=True), model(X, training=False), rtol=1e-5, atol=1e-7)


def test_disable_reaches_a_layer_that_left_the_model():
    model, other = fresh(stack), fresh(stack)
    tfgc.enable(model, layers=["dense_3", "dense_4"])
    last, moved = model.pop(), model.pop()
    other.pop()
    other.pop()
    other.add(moved)
    tfgc.enable(other, layers=[moved])
    tfgc.disable(model)
    assert "call" not in vars(last)
    assert "call" in vars(moved), "another model was enabled by it since"
    tfgc.disable(other)
    assert "call" not in vars(moved)


def doubled(layer):
    """Put a `call` on a layer that is not its class's; return it."""
    layer.call = own = lambda x, training=None: tf.tanh(2.0 * x)
    return own


@pytest.mark.parametrize("how", [{"layers": ["dense_1"]}, {"strategy": "uniform"}, {}], ids=["layers", "plan", "later"])
def test_disable_puts_back_a_call_that_was_on_the_layer(how):
    model = fresh(stack)
    own = doubled(model.get_layer("dense_1"))
    before = model(X)
    tfgc.enable(model, **how)
    if how:
        np.testing.assert_allclose(model(X, training=True), before, rtol=1e-5)
    tfgc.enable(model, layers=["dense_1"])  # replaces what was enabled, not what the user had put there
    tfgc.disable(model)
    assert vars(model.get_layer("dense_1"))["call"] is own
    np.testing.assert_array_equal(model(X), before)


def test_disable_leaves_a_call_that_was_put_on_the_layer_since():
    model = fresh(stack)
    doubled(model.get_layer("dense_1"))
    tfgc.enable(model, layers=["dense_1"])
    own = doubled(model.get_layer("dense_1"))
    tfgc.disable(model)
    assert vars(model.get_layer("dense_1"))["call"] is own


@pytest.mark.parametrize("how", [{}, {"layers": L.Dense}], ids=["later", "layers"])
def test_a_call_that_was_on_a_functional_model_is_what_trains(how):
    """Its graph trained in place of it."""
    model = fresh(stack)
    model.call = own = lambda x, training=None, mask=None: 2.0 * type(model).call(model, x, training=training)
    before = model(X)
    tfgc.enable(model, **how, verbose=0)
    with warnings.catch_warnings(), tf.GradientTape() as tape:
        warnings.simplefilter("ignore", tfgc.NothingSavedWarning)
        made = model(X, training=True)
    np.testing.assert_allclose(made, before, rtol=1e-5)
    assert all(g is not None for g in tape.gradient(made, [v.value for v in model.trainable_variables]))
    tfgc.disable(model)
    assert vars(model)["call"] is own


def test_a_call_that_was_put_around_that_of_an_enabled_model():
    model = tfgc.enable(fresh(stack), tfgc.plan(fresh(stack), strategy="uniform"))
    expected, run = model(X, training=True), model.call
    model.call = lambda x, training=None, mask=None: 2.0 * run(x, training=training)
    np.testing.assert_allclose(model(X, training=True), 2.0 * expected, rtol=1e-6)


def test_disable_puts_back_methods_that_were_on_the_model():
    model = fresh(Tower)
    model(X)
    model.compile("sgd", "mse")
    seen = []

    def train_step(data):
        seen.append(data)
        return Tower.train_step(model, data)

    model.train_step, model.call = train_step, lambda x: 2.0 * Tower.call(model, x)
    own = dict(vars(model))
    tfgc.enable(model, verbose=0)
    model.train_on_batch(X, X)
    assert seen
    tfgc.disable(model)
    assert [vars(model)[name] for name in ("train_step", "call")] == [own["train_step"], own["call"]]


def test_verify_runs_a_call_that_was_on_the_layer():
    """It compared the class's code with itself where the layer was enabled."""
    model, seen = fresh(stack), []
    own = doubled(model.get_layer("dense_1"))
    model.get_layer("dense_1").call = lambda x, training=None: seen.append(x) or own(x)
    tfgc.enable(model, layers=["dense_1"])
    assert tfgc.verify(model, None, (X, X), layers=["dense_1"], loss="mse", modes=("eager",), steps=1)
    assert seen


class Weighted(L.Layer):
    """Adds to its input what it makes of it, times a number and numbers of a list that users set between calls."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.factor, self.rates, self.inside = 1.0, [0.0], L.Dense(6, activation="tanh")

    def call(self, x):
        return x + (self.factor + self.rates[0]) * self.inside(x)


class Shrinking(keras.Model):
    """One block for all depths, which counts less the deeper it is."""

    def __init__(self):
        super().__init__()
        self.block = Weighted(name="block")

    def call(self, x):
        for factor in (1.0, 0.5, 0.1):
            self.block.factor = factor
            self.block.rates[0] = factor / 3
            x = self.block(x)
        return x


@pytest.mark.parametrize(("mode", "how"), in_turn([*MODES, "xla"], ["layers", "planned"]))
def test_a_shared_layer_is_set_otherwise_for_each_call_of_a_step(how, mode):
    """A replay finds the settings of the last call, unless those of its own are put back."""

    def run(enabled):
        model = fresh(Shrinking)
        model(X)
        if enabled:
            chosen = {"layers": ["block"]} if how == "layers" else {}
            tfgc.enable(model, **chosen, verbose=0)
        graph = mode in ("graph", "xla") or (mode == "compiled" and not enabled)
        return train(model, X, [X], graph=graph, jit_compile=mode == "xla" or None, steps=2)

    assert_equal(run(False), run(True), exact=mode == "eager")


@pytest.mark.parametrize("mode", [*MODES, "xla"])
def test_a_layer_is_frozen_before_gradients_are_asked_for(mode):
    """A replay in inference mode returned other things than the first run, which raised an error."""

    def build():
        layers = [L.Dense(6), L.BatchNormalization(name="norm"), L.Dense(6, activation="tanh"), L.Dense(2)]
        return keras.Sequential([keras.Input((6,)), *layers])

    def gradient(enabled):
        model = fresh(build)
        if enabled:
            tfgc.enable(model, layers=["norm"])

        def step():
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(model(X, training=True) ** 2)
            model.get_layer("norm").trainable = False
            found = tape.gradient(loss, model.layers[0].kernel.value)
            model.get_layer("norm").trainable = True
            return found

        compiled = {"graph": {}, "xla": {"jit_compile": True}}.get(mode)
        return (step if compiled is None else tf.function(step, **compiled))()

    plain = gradient(False)
    assert np.abs(plain).max() > 1e-3
    np.testing.assert_allclose(gradient(True), plain, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("how", [{"layers": L.Dense}, {"strategy": "uniform", "segments": 2}], ids=["layers", "plan"])
def test_another_regularizer_is_that_of_the_next_call(how):
    def build():
        penalized = L.Dense(6, activity_regularizer=keras.regularizers.L2(0.1))
        return keras.Sequential([keras.Input((6,)), penalized, L.Dense(6), L.Dense(2)])

    def losses(enabled):
        model = fresh(build)
        if enabled:
            tfgc.enable(model, **how, verbose=0)
        found = []
        for _ in range(2):
            with tf.GradientTape() as tape:
                loss = tf.add_n([tf.reduce_mean(model(X, training=True) ** 2), *model.losses])
            tape.gradient(loss, [v.value for v in model.trainable_variables])
            found.append(float(loss))
            model.layers[0].activity_regularizer = keras.regularizers.L2(5.0)
        return found

    plain = losses(False)
    assert abs(plain[0] - plain[1]) > 0.1
    np.testing.assert_allclose(losses(True), plain, rtol=1e-5)


class Looking(L.Layer):
    """Holds a table whose keys cannot be sorted."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.table, self.inside = {1: "tanh", None: "relu", L.Dense: 2, (1, "x"): [3]}, L.Dense(6)

    def call(self, x):
        return keras.ops.tanh(self.inside(x)) if self.table[1] == "tanh" else x


@pytest.mark.parametrize(("how", "mode"), in_turn(["layers", "plan"], MODES))
def test_a_layer_holds_a_table_whose_keys_cannot_be_sorted(how, mode):
    def build():
        return keras.Sequential([keras.Input((6,)), L.Dense(6), Looking(), Looking(), L.Dense(6)])

    def run(enabled):
        model = fresh(build)
        if enabled:
            chosen = {"layers": Looking} if how == "layers" else {"strategy": "optimal"}
            tfgc.enable(model, **chosen, verbose=0)
        graph = mode == "graph" or not enabled
        return train(model, X, [X], graph=graph, steps=1)

    assert_equal(run(False), run(True), exact=mode == "eager")


def test_a_compiled_subclassed_model_is_recomputed():
    """Keras holds a table by layers then."""
    model = fresh(Tower)
    model.compile("sgd", "mse")
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tfgc.recompute(model)(X) ** 2)
    assert all(g is not None for g in tape.gradient(loss, [v.value for v in model.trainable_variables]))


def test_what_a_layer_changes_while_it_runs_is_no_setting():
    class Counter(L.Layer):
        calls, scale = 0, 1.0

        def call(self, x):
            self.calls += 1
            return x * self.scale

    model = keras.Sequential([keras.Input((6,)), L.Dense(6), Counter(name="counter"), L.Dense(6), L.Dense(6)])
    tfgc.enable(model, tfgc.plan(model, strategy="uniform", segments=2))
    counter = model.get_layer("counter")
    for _ in range(3):
        model(X, training=True)
    before = counter.calls
    for _ in range(3):
        model(X, training=True)
    assert counter.calls == before, "it was traced again"
    counter.scale = 3.0
    np.testing.assert_allclose(model(X, training=True), model(X, training=False), rtol=1e-5)


@pytest.mark.parametrize(("length", "is_noticed"), [(64, True), (65, False)])
def test_lists_of_up_to_64_numbers_are_settings(length, is_noticed):
    layer = Weighted()
    layer.rates = [0.0] * length
    settings = Settings([layer])
    before = settings()
    layer.rates[0] = 1.0
    assert (settings() != before) == is_noticed


class Scaled(L.Layer):
    """By the first of some numbers."""

    factor = (1.0,)

    def call(self, x):
        return x * keras.ops.cast(self.factor[0], x.dtype)


@pytest.mark.parametrize("factor", [[1.0], np.array([1.0])], ids=["list", "array"])
def test_a_number_inside_of_a_list_or_an_array_changes(factor):
    layers = [L.Dense(6), Scaled(name="scaled"), L.Dense(6), L.Dense(6)]
    model = fresh(lambda: keras.Sequential([keras.Input((6,)), *layers]))
    layers[1].factor = copy.copy(factor)
    tfgc.enable(model, tfgc.plan(model, strategy="uniform", segments=2))
    for _ in range(2):
        np.testing.assert_allclose(model(X, training=True), model(X, training=False), rtol=1e-5)
        layers[1].factor[0] = 3.0


SEQUENCES = {
    "dilation_rate": (lambda: L.Conv2D(3, 3, padding="same", name="changed"), (2, 2)),
    "strides": (lambda: L.Conv2D(3, 3, padding="same", name="changed"), (2, 2)),
    "pool_size": (lambda: L.AveragePooling2D((1, 1), (1, 1), padding="same", name="changed"), (3, 3)),
    "scale": (lambda: L.Rescaling([1.0, 1.0, 1.0], name="changed"), [2.0, 2.0, 3.0]),
}


@pytest.mark.parametrize(("name", "how"), in_turn(SEQUENCES, [{"layers": ["changed"]}, {"strategy": "uniform"}]))
def test_a_tuple_or_a_list_of_one_of_keras_layers_is_replaced(name, how):
    make, value = SEQUENCES[name]
    layers = [L.Conv2D(3, 1), make(), L.Conv2D(3, 3), L.GlobalAveragePooling2D()]
    model = fresh(lambda: keras.Sequential([keras.Input((8, 8, 3)), *layers]))
    images = noise(2, 8, 8, 3)
    tfgc.enable(model, **how, verbose=0)
    seen = []
    for _ in range(2):
        seen.append(model(images, training=True))
        np.testing.assert_allclose(seen[-1], model(images, training=False), rtol=1e-5, atol=1e-6)
        setattr(layers[1], name, value)
    assert np.abs(seen[0] - seen[1]).max() > 1e-3


@pytest.mark.parametrize("kind", [L.BatchNormalization, L.LayerNormalization, L.RandomRotation])
def test_lists_and_tuples_of_keras_layers_make_no_new_traces(kind):
    layer = kind(**({"factor": 0.1} if kind is L.RandomRotation else {}))
    model = keras.Sequential([keras.Input((8, 8, 3)), L.Conv2D(3, 1), layer, L.Conv2D(3, 1), L.Conv2D(3, 1)])
    tfgc.enable(model, tfgc.plan(model, strategy="uniform", segments=2))
    settings, images = Settings([model]), noise(2, 8, 8, 3)
    model(images, training=True)
    before = settings()
    model(images, training=True)
    assert settings() == before


THINGS = {
    "float": (float, lambda held: held),
    "NumPy's float32": (np.float32, lambda held: held),
    "NumPy's int64": (np.int64, lambda held: tf.cast(held, "float32")),
    "list": (lambda by: [by], lambda held: held[0]),
    "tuple": (lambda by: (by, 2), lambda held: held[0]),
    "array": (lambda by: np.array([by], "float32"), lambda held: held[0]),
    "dictionary": (lambda by: {"by": by}, lambda held: held["by"]),
    "nested list": (lambda by: [[by]], lambda held: held[0][0]),
    "nested tuple": (lambda by: ((by,),), lambda held: held[0][0]),
    "long list": (lambda by: [by] * 65, lambda held: held[0]),
    "long array": (lambda by: np.full(65, by), lambda held: held[0]),
    "set": (lambda by: {by}, max),
    "object": (lambda by: types.SimpleNamespace(by=by), lambda held: held.by),
    "integer tensor": (lambda by: tf.constant(int(by)), lambda held: tf.cast(held, "float32")),
    "variable": (lambda by: tf.Variable(by, trainable=False), lambda held: held),
}


class TimesHeld(L.Layer):
    """By a number inside of a thing that it holds."""

    def __init__(self, held, read, **kwargs):
        super().__init__(**kwargs)
        self.held, self.read, self.inside = held, read, L.Dense(6)

    def build(self, shape):
        self.inside.build(shape)

    def call(self, x):
        return self.inside(x) * self.read(self.held)


@pytest.mark.parametrize(("kind", "how"), in_turn(THINGS, [{"layers": TimesHeld}, {"strategy": "uniform"}]))
def test_a_thing_that_a_layer_holds_is_exchanged(kind, how):
    make, read = THINGS[kind]
    layers = [L.Dense(6), TimesHeld(make(1.0), read), L.Dense(6), L.Dense(6)]
    model = fresh(lambda: keras.Sequential([keras.Input((6,)), *layers]))
    tfgc.enable(model, **how, verbose=0)
    first = model(X, training=True)
    layers[1].held = make(3.0)
    with tf.GradientTape() as tape:
        second = model(X, training=True)
    np.testing.assert_allclose(second, model(X, training=False), rtol=1e-5)
    assert np.abs(first - second).max() > 1e-3
    layers[1].held = make(1.0)
    gradient = tape.gradient(second, layers[1].inside.kernel.value)
    layers[1].held = make(3.0)
    with tf.GradientTape() as tape:
        plain = model(X, training=False)
    np.testing.assert_allclose(gradient, tape.gradient(plain, layers[1].inside.kernel.value), rtol=1e-5)


def test_weights_in_a_list_are_no_constants():
    class Listed(L.Layer):
        def build(self, _):
            self.factors = [self.add_weight(initializer="ones", name=name) for name in "ab"]

        def call(self, x):
            return x * self.factors[0] * self.factors[1]

    model = keras.Sequential([keras.Input((6,)), L.Dense(6), Listed(), L.Dense(6)])
    tfgc.enable(model, layers=Listed)
    np.testing.assert_allclose(model(X, training=True), model(X, training=False), rtol=1e-5)


def test_other_arguments_of_a_lambda_are_those_of_the_next_call():
    times = L.Lambda(lambda x, by: x * by, arguments={"by": 2.0})
    model = keras.Sequential([keras.Input((6,)), L.Dense(6), times, L.Dense(6), L.Dense(6)])
    tfgc.enable(model, tfgc.plan(model, strategy="uniform", segments=2))
    for by in (2.0, 3.0):
        times.arguments = {"by": by}
        np.testing.assert_allclose(model(X, training=True), model(X, training=False), rtol=1e-5)


def test_a_dictionary_that_a_layer_makes_in_each_call_is_no_setting():
    class Noting(L.Layer):
        def __init__(self):
            super().__init__()
            self.traces, self.noted, self.last = [], {}, tf.constant(0)

        def call(self, x):
            self.traces.append(None)
            self.noted, self.last = {"rank": len(x.shape)}, tf.shape(x)[0]
            return x * 2.0

    noting = Noting()
    model = keras.Sequential([keras.Input((6,)), L.Dense(6), noting, L.Dense(6), L.Dense(6)])
    tfgc.enable(model, tfgc.plan(model, strategy="uniform", segments=2))
    for _ in range(2):
        model(X, training=True)
    before = len(noting.traces)
    for _ in range(3):
        model(X, training=True)
    assert len(noting.traces) == before, "it was traced again"


def test_settings_keep_no_dictionary_alive():
    layer = TimesHeld({"by": 1.0}, None)
    settings, held = Settings([layer]), weakref.ref(layer.held)
    before = settings()
    layer.held = {"by": 1.0}
    gc.collect()
    assert held() is None
    assert settings() != before


OPTIONAL_MODES = ("eager", "compiled", "graph", "fit", "step")


class Both(L.Layer):
    def call(self, x, extra=None):
        return x if extra is None else x * extra

    def compute_output_shape(self, x_shape, extra_shape=None):
        return x_shape


def with_optional_input():
    first = keras.Input((6,), name="first")
    second = keras.Input((6,), name="second", optional=True)
    x = Both()(L.Dense(6, activation="tanh")(first), second)
    x = Both()(L.Dense(6, activation="tanh")(x), second)
    return keras.Model({"first": first, "second": second}, L.Dense(6)(L.Dense(6, activation="tanh")(x)))


@pytest.mark.parametrize("mode", OPTIONAL_MODES)
def test_an_optional_input_is_none_and_then_is_not(mode):
    given = [{"first": X, "second": None}, {"first": X, "second": noise(8, 6, seed=4)}]

    def plan(model):
        return tfgc.plan(model, strategy="uniform", segments=2)

    def run(enabled):
        model = fresh(with_optional_input)
        if enabled and mode != "step":
            tfgc.enable(model, plan(model))
        if mode in ("eager", "compiled", "graph"):
            graph = mode == "graph" or not enabled
            return [step for x in given for step in train(model, x, [X], graph=graph, steps=1)]
        model.compile("sgd", "mse")
        losses = []
        for x in given:
            if mode == "step" and enabled:
                step = tfgc.train_step(model, "mse", keras.optimizers.SGD(), plan=plan(model))
                losses += [float(step(x, X)["loss"]) for _ in range(2)]
            else:
                losses += [float(model.train_on_batch(x, X)) for _ in range(2) if not model.reset_metrics()]
        return losses, [np.array(v) for v in model.variables]

    plain, ours = run(False), run(True)
    if isinstance(plain, list):
        assert_equal(plain, ours, exact=mode == "eager")
    else:
        for a, b in zip(tf.nest.flatten(plain), tf.nest.flatten(ours), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)
