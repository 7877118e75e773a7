"""What is kept between calls has a limit, and what is dropped is freed and can be made again."""

import gc
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf
from equality import fresh, noise
from models import Subclassed, built
from tensorflow.python.framework.func_graph import FuncGraph

import tfgc
from tfgc import Plan
from tfgc._core.recently_used import RecentlyUsed
from tfgc._framework import graph_optimizer, keras_models
from tfgc._pairs import functions, pairs
from tfgc._training import following_step, planned_calls

L = keras.layers


def alive(kind):
    gc.collect()
    return [thing for thing in gc.get_objects() if type(thing) is kind]


def entries():
    """The sizes of all caches that there are."""
    return sorted(len(cache) for cache in alive(RecentlyUsed))


def gradient(function, x, *args):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x, *args)
    return tape.gradient(y, x).numpy()


def test_what_was_used_longest_ago_goes():
    cache = RecentlyUsed(2)
    cache["a"], cache["b"] = 1, 2
    assert cache.get("a") == 1
    cache["c"] = 3
    assert cache.get("b") is None
    assert cache.copy() == {"a": 1, "c": 3}
    cache["a"] = 4
    cache["d"] = 5
    assert cache.copy() == {"a": 4, "d": 5}
    cache.clear()
    assert len(cache) == 0


def test_a_number_that_changes_in_each_call_fills_no_memory(monkeypatch):
    monkeypatch.setattr(pairs, "_MOST_KNOWN", 4)
    before = entries()
    power = tfgc.recompute(lambda x, n: x**n)
    x = tf.constant([1.0, 2.0])
    for n in range(1, 20):
        np.testing.assert_allclose(gradient(power, x, float(n)), n * x.numpy() ** (n - 1))
    for n in (1, 18, 3):  # of which two were dropped
        np.testing.assert_allclose(gradient(power, x, float(n)), n * x.numpy() ** (n - 1))
    assert entries() == sorted([*before, 4])


class Quadrupled(L.Layer):
    """Cannot be traced for open sizes."""

    def build(self, shape):
        self.built = True

    def call(self, x):
        return keras.ops.sum(keras.ops.reshape(x, (-1, x.shape[1] * 4)), 1)


class Quadrupling(keras.Model):
    def __init__(self):
        super().__init__()
        self.inner = Quadrupled()

    def build(self, shape):
        self.built = True

    def call(self, x):
        return self.inner(x)


def test_the_graph_of_a_shape_that_was_dropped_is_freed(monkeypatch):
    monkeypatch.setattr(pairs, "_MOST_ALIKE", 2)
    model = Quadrupling()
    tfgc.enable(model, layers=[Quadrupled], verbose=0)
    before = set(map(id, alive(FuncGraph)))
    counts = []
    for n in (*range(2, 12), 3):
        np.testing.assert_array_equal(gradient(model, tf.ones((2, n, 4))), np.ones((2, n, 4)))
        counts.append(sum(id(graph) not in before for graph in alive(FuncGraph)))
    assert counts[-1] == counts[5]


class Scaled(L.Layer):
    def __init__(self):
        super().__init__()
        self.dense = L.Dense(4)

    def call(self, x, factor=1.0):
        return keras.ops.tanh(self.dense(x)) * factor


class Scaling(keras.Model):
    def __init__(self):
        super().__init__()
        self.scaled, self.head = Scaled(), L.Dense(2)

    def call(self, x, factor=1.0):
        return self.head(self.scaled(x, factor=factor))


def scaling():
    model = Scaling()
    model(noise(2, 4))
    keras.utils.set_random_seed(3)
    return model


def test_a_trace_that_was_dropped_is_freed_and_its_call_still_has_gradients(monkeypatch):
    monkeypatch.setattr(pairs, "_MOST_KNOWN", 2)
    plain, model = fresh(scaling), fresh(scaling)
    tfgc.enable(model, layers=[model.scaled])
    x = noise(2, 4)
    before = set(map(id, alive(functions.Directions)))

    def new():
        return [one for one in alive(functions.Directions) if id(one) not in before]

    with tf.GradientTape(persistent=True) as tape:
        y = tf.reduce_sum(model(x, factor=2.0))
    (first,) = new()
    first = weakref.ref(first)
    for factor in (3.0, 4.0, 5.0):
        np.testing.assert_allclose(model(x, factor=factor), plain(x, factor=factor), rtol=1e-5)
    assert len(new()) == 3  # The tape still holds the first.
    expected = gradients(plain, x, 2.0)
    for given in (tape.gradient(y, variables(model)), tape.gradient(y, variables(model)), gradients(model, x, 2.0)):
        for one, other in zip(expected, given, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    del tape, y
    gc.collect()
    assert first() is None
    assert len(new()) == 2


def variables(model):
    return [v.value for v in model.trainable_variables]


def gradients(model, x, factor):
    with tf.GradientTape() as tape:
        y = tf.reduce_sum(model(x, factor=factor))
    return tape.gradient(y, variables(model))


def text():
    inputs = keras.Input((None,), dtype="int32")
    x = L.Embedding(9, 4)(inputs)
    for _ in range(3):
        x = L.Conv1D(4, 3, padding="same", activation="relu")(x)
    return keras.Model(inputs, L.Dense(2)(L.Dropout(0.2)(L.GlobalAveragePooling1D()(x))))


def trained(model, length, x=None):
    x = np.random.default_rng(length).integers(0, 9, (2, length)).astype("int32")
    with tf.GradientTape() as tape:
        y = tf.reduce_sum(model(x, training=True) ** 2)
    return [tf.convert_to_tensor(g).numpy() for g in tape.gradient(y, variables(model))]


def test_the_backward_pass_of_a_plan_that_was_dropped(monkeypatch):
    monkeypatch.setattr(planned_calls, "_MOST_PLANS", 1)
    plain, model = fresh(text), tfgc.enable(fresh(text), strategy="uniform", segments=2, verbose=0)
    x = np.ones((2, 6), "int32")
    with tf.GradientTape() as tape:
        y = tf.reduce_sum(model(x, training=True) ** 2)
    seed = next(v for v in model.variables if "seed" in v.path)
    drawn = seed.numpy()
    trained(model, 8)
    trained(model, 7)
    assert len(tfgc.status(model).plans) == 1
    given = tape.gradient(y, variables(model))
    with tf.GradientTape() as tape:
        y = tf.reduce_sum(plain(x, training=True) ** 2)
    assert next(v for v in plain.variables if "seed" in v.path).numpy().tolist() == drawn.tolist()
    for one, other in zip(tape.gradient(y, variables(plain)), given, strict=True):
        np.testing.assert_allclose(tf.convert_to_tensor(one), tf.convert_to_tensor(other), rtol=1e-4, atol=1e-5)


@pytest.mark.gate
def test_a_setting_that_changes_at_each_step_keeps_few_steps(monkeypatch):
    monkeypatch.setattr(following_step, "_MOST_TRACES", 2)
    model = fresh(lambda: keras.Sequential([keras.Input((4,)), L.Dense(4), L.Dropout(0.5), L.Dense(4), L.Dense(2)]))
    step = tfgc.train_step(model, "mse", "sgd", plan=tfgc.plan(model, strategy="uniform", segments=2))
    traced = []
    for i in range(5):
        model.layers[1].rate = 0.5 - 0.1 * i
        step(noise(2, 4), noise(2, 2))
        traced.append(len(alive(type(tf.function(print)))))
    assert traced[1] == traced[-1]


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_thousands_of_steps_with_fifty_shapes():
    """Caches are as long after 5,000 steps as after 2,500, and of ten steps between not one object stays.

    That is no share of all objects: how many there are depends on the tests before.
    """
    model = tfgc.enable(fresh(text), strategy="uniform", segments=2, verbose=0)
    power = tfgc.recompute(lambda x, n: x * n)
    counts, sizes = [], []
    for i in range(5000):
        trained(model, 8 + i * 7 % 50)
        gradient(power, tf.ones((1 + i % 50,)), 1.0 + i)
        if i % 2500 == 2499:
            sizes.append(entries())
            gc.collect()  # What waits to be collected is no growth.
            counts.append(len(gc.get_objects()))
    assert sizes[0] == sizes[1]
    assert counts[1] - counts[0] < 250


@pytest.mark.parametrize("nested", [False, True])
def test_the_graph_of_a_step_goes_with_the_step(nested):
    """`tf.custom_gradient` would hold it for good."""
    model = fresh(lambda: keras.Sequential([keras.Input((4,)), *[L.Dense(16, "gelu") for _ in range(6)]]))

    def pieces(graph):
        quarter, end = len(graph) // 4, len(graph)
        first = [(0, quarter, "recompute"), (quarter, 2 * quarter, "recompute")] if nested else "recompute"
        return Plan.from_pieces(graph, [(0, 2 * quarter, first), (2 * quarter, end, "keep")], strategy="by hand")

    plan = tfgc.plan(model, 64, strategy=pieces)
    assert (plan.segments[0].mode, plan.is_nested) == ("recompute", nested)
    tfgc.enable(model, plan)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(x, training=True) ** 2)
        return tape.gradient(loss, variables(model))

    step(noise(64, 4))
    graph = weakref.ref(step.get_concrete_function(noise(64, 4)).graph)
    assert graph() is not None
    del step
    gc.collect()
    assert graph() is None


def in_a_function(step):
    return tf.function(step, autograph=False)


def in_fit(model, **options):
    tfgc.enable(model, verbose=0, **options).fit(noise(512, 8), noise(512, 4), batch_size=256, verbose=0)
    return model


def in_a_loop(model, wrap, **options):
    tfgc.enable(model, verbose=0, **options)
    optimizer = keras.optimizers.SGD()

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x, training=True) ** 2)
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

    wrap(step)(noise(256, 8))
    return model


def in_a_gan():
    class Gan(keras.Model):
        def __init__(self):
            super().__init__()
            self.generator, self.critic = deep(), deep(4)

        def train_step(self, data):
            for part in (self.generator, self.critic):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean(self.critic(self.generator(data[0], training=True), training=True))
                self.optimizer.apply(tape.gradient(loss, part.trainable_variables), part.trainable_variables)
            return {"loss": loss}

    model = Gan()
    model.compile(keras.optimizers.SGD())
    model.optimizer.build([*model.generator.trainable_variables, *model.critic.trainable_variables])
    for part in (model.generator, model.critic):
        tfgc.enable(part, verbose=0, strategy="sqrt")
    model.fit(noise(8, 8), noise(8, 4), batch_size=4, verbose=0)
    return model


def by_train_step():
    model = deep()
    plan = tfgc.plan(model, 4, strategy="sqrt")
    tfgc.train_step(model, keras.losses.MeanSquaredError(), "adam", plan=plan)(noise(4, 8), noise(4, 4))
    return model


def by_verify():
    model = deep()
    assert tfgc.verify(model, tfgc.plan(model, 4, strategy="sqrt"), (noise(4, 8), noise(4, 4)))
    return model


def of_recomputed_methods():
    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.inner, self.last = deep(), L.Dense(4)
            self.first, self.second = tfgc.recompute(self.inner), tfgc.recompute(self.end)

        def end(self, x):
            return self.last(tf.nn.gelu(x))

        def call(self, x):
            return self.second(self.first(x))

    model = Model()
    model.compile("sgd", "mse")
    model.fit(noise(8, 8), noise(8, 4), batch_size=4, verbose=0)
    return model


def deep(width=8):
    model = keras.Sequential([keras.Input((width,)), *[L.Dense(width, "silu") for _ in range(4)], L.Dense(4)])
    model.compile("adam", "mse")
    return model


def subclassed():
    model = built(Subclassed, noise(4, 8))()
    model.compile("adam", "mse")
    return model


WAYS = {
    "fit": lambda: in_fit(deep(), strategy="sqrt"),
    "fit, a budget": lambda: in_fit(deep(), budget="95%"),
    "fit, by calls": lambda: in_fit(subclassed()),
    "fit, out of memory": lambda: in_fit(deep(), strategy="sqrt", on_oom="replan"),
    "disable": lambda: tfgc.disable(in_fit(deep(), strategy="sqrt")),
    "function": lambda: in_a_loop(deep(), in_a_function, strategy="sqrt"),
    "function, by calls": lambda: in_a_loop(subclassed(), in_a_function),
    "eager": lambda: in_a_loop(deep(), lambda step: step, strategy="sqrt"),
    "train_step": by_train_step,
    "verify": by_verify,
    "parts": in_a_gan,
    "recompute": of_recomputed_methods,
}


@pytest.mark.parametrize("way", WAYS)
def test_a_model_that_is_deleted_is_freed(way):
    """TensorFlow keeps the graph of each step in which an optimizer of Keras applies gradients."""
    model = WAYS[way]()
    alive = {layer.path: weakref.ref(layer) for layer in keras_models.layers_inside(model)}
    del model
    keras.utils.clear_session(free_memory=False)
    gc.collect()
    assert [path for path, layer in alive.items() if layer() is not None] == []


def test_a_function_outlives_the_model_that_it_recomputes():
    def traced():
        model = tfgc.enable(deep(), verbose=0, strategy="sqrt")
        function = in_a_function(lambda x: model(x, training=True)).get_concrete_function(noise(4, 8))
        return function, model.variables, model(noise(4, 8), training=True)

    with graph_optimizer.off():
        run, _, wanted = traced()
        gc.collect()
        np.testing.assert_array_equal(run(noise(4, 8)), wanted)
    with tf.GradientTape(), pytest.raises(TypeError, match="was deleted: keep it alive"):
        run(noise(4, 8))
