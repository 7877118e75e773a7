"""`tf.function`s inside of what is recomputed: their bodies run in place, or compiled where they ask for XLA.

Keras calls grouped convolutions through `tf.function(jit_compile=True)`, since TensorFlow cannot run them on CPUs.
"""

import functools
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf
from equality import assert_equal, check_enabled, fresh, in_turn, mostly, noise, train

import tfgc

MODES = ("eager", "compiled", "graph")
slow = functools.partial(pytest.param, marks=pytest.mark.slow)


def convolutions(layer, shape, dtype="float32"):
    def build():
        inputs = keras.Input(shape)
        x = layer(dtype=dtype)(inputs)
        x = keras.layers.BatchNormalization(dtype=dtype, axis=1 if x.shape[1] == 4 else -1)(x)
        x = layer(dtype=dtype)(keras.layers.Activation("relu", dtype=dtype)(x))
        return keras.Model(inputs, keras.layers.Activation("linear", dtype="float32")(x))

    return build


GROUPED = {
    "Conv1D": (functools.partial(keras.layers.Conv1D, 4, 3, groups=2, activation="relu"), (9, 4)),
    "Conv2D": (functools.partial(keras.layers.Conv2D, 4, 3, groups=2, activation="relu"), (7, 7, 4)),
    "Conv3D": (functools.partial(keras.layers.Conv3D, 4, 3, groups=2, activation="relu"), (6, 6, 6, 4)),
    "Conv3D channels_first": (functools.partial(keras.layers.Conv3D, 4, 3, data_format="channels_first"), (4, 6, 6, 6)),
}

IN_THE_GATE = {("Conv2D", "mixed_float16"), ("Conv3D channels_first", "float32")}


def crossings():
    """Conv3D, which crashes in float32 if inlined, in every mode; the gate has others in graphs, one in half."""
    for kind in GROUPED:
        for policy in ("float32", "mixed_float16"):
            for mode in MODES:
                graph = mode == "graph" and (kind, policy) in IN_THE_GATE
                if (kind, policy) == ("Conv3D", "float32"):
                    yield kind, policy, mode
                else:
                    yield pytest.param(kind, policy, mode, marks=pytest.mark.gate if graph else pytest.mark.slow)


@pytest.mark.gate
@pytest.mark.parametrize(("kind", "policy", "mode"), crossings())
def test_convolutions_that_keras_compiles(kind, policy, mode):
    layer, shape = GROUPED[kind]
    build = convolutions(layer, shape, policy)
    x = noise(2, *shape)
    y = [noise(*fresh(build)(x).shape, seed=2)]
    # Compiled op by op by XLA and run op by op, a convolution's bias gradient is summed in another order.
    allowed = 1e-6 if policy == "float32" and mode == "eager" else 5e-3 if mode == "eager" else 0.0
    check_enabled(build, x, y, mode, segments=2, policy=policy, allowed=allowed, steps=1)


@pytest.mark.parametrize("mode", mostly("graph"))
def test_such_a_layer_recomputed_alone(mode):
    layer, shape = GROUPED["Conv3D"]
    x = noise(2, *shape)
    y = [noise(2, 2, 2, 2, 4, seed=2)]
    build = convolutions(layer, shape)
    plain = train(fresh(build), x, y, graph=True, steps=1)
    model = fresh(build)
    chosen = [layer for layer in model.layers if isinstance(layer, keras.layers.Conv3D)]
    tfgc.enable(model, layers=chosen)
    ours = train(model, x, y, graph=mode == "graph", steps=1)
    assert_equal(plain, ours, exact=False)


def compiled_calls(graph):
    """How many calls of functions that XLA compiles a graph holds, and the functions that it calls."""
    compiled = {f.signature.name for f in graph.as_graph_def().library.function if f.attr["_XlaMustCompile"].b}
    definition = graph.as_graph_def()
    nodes = [*definition.node, *(node for function in definition.library.function for node in function.node_def)]
    return sum(node.attr["f"].func.name in compiled for node in nodes if "f" in node.attr)


def test_they_stay_compiled_in_both_runs():
    layer, shape = GROUPED["Conv3D"]
    conv = layer()
    x = noise(2, *shape)
    conv(x)

    def calls(call):
        @tf.function
        def step():
            with tf.GradientTape() as tape:
                value = tf.reduce_sum(call(x) ** 2)
            return tape.gradient(value, conv.kernel.value)

        return compiled_calls(step.get_concrete_function().graph)

    # Forward and backward, which needs nothing of a convolution alone.
    assert [calls(conv), calls(tfgc.recompute(conv))] == [2, 2]


class Counted(keras.layers.Layer):
    """Calls through XLA, moves states, and draws random numbers (XLA has another generator)."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(4, use_bias=False)
        self.noise = keras.layers.GaussianNoise(0.5, seed=3)
        self.norm = keras.layers.BatchNormalization(momentum=0.5)

    def build(self, shape):
        self.count = self.add_weight(shape=(), initializer="zeros", trainable=False, name="count")
        self.dense.build(shape)
        self.norm.build((*shape[:-1], 4))

    def compute_output_shape(self, shape):
        return (*shape[:-1], 4)

    @tf.function(jit_compile=True)
    def inside(self, x, training):
        self.count.assign_add(1.0)
        return self.norm(self.noise(self.dense(x), training=training), training=training) * self.count

    def call(self, x, training=None):
        return self.inside(x, training)


def counted():
    layers = [keras.layers.Dense(4, "tanh"), Counted(), keras.layers.Dense(4)]
    return keras.Sequential([keras.Input((4,)), *layers])


@pytest.mark.gate
@pytest.mark.parametrize(("mode", "way"), in_turn(MODES, ("layers", "enable")))
def test_states_of_a_compiled_function(way, mode):
    x, y = noise(8, 4), [noise(8, 4, seed=2)]
    plain = train(fresh(counted), x, y, graph=True)
    model = fresh(counted)
    if way == "enable":
        plan = tfgc.plan(model, strategy="uniform", segments=2)
        assert plan.segments[0].mode == "recompute"
        assert model.layers[1].name in plan.segments[0].nodes
        tfgc.enable(model, plan)
    else:
        tfgc.enable(model, layers=[model.layers[1]])
    ours = train(model, x, y, graph=mode == "graph")
    assert_equal(plain, ours, exact=False)


def test_a_variable_of_both_branches_in_a_compiled_function():
    class Branching(keras.layers.Layer):
        def build(self, shape):
            self.scale = self.add_weight(shape=(), initializer="ones", name="scale")

        @tf.function(jit_compile=True)
        def call(self, x):
            return tf.cond(tf.reduce_sum(x) > 0, lambda: x * self.scale, lambda: x + self.scale)

    layer, x = Branching(), noise(4, 4)
    layer(x)
    variable = layer.scale.value
    with tf.GradientTape() as tape:
        y = tf.reduce_sum(tfgc.recompute(layer)(x) ** 2)
    with tf.GradientTape() as plain:
        expected = tf.reduce_sum(layer(x) ** 2)
    np.testing.assert_allclose(tape.gradient(y, variable), plain.gradient(expected, variable), rtol=1e-6)


def test_inlining_of_functions_ends_with_the_call():
    assert not tf.config.functions_run_eagerly()
    tfgc.recompute(tf.tanh)(noise(4, 4))
    assert not tf.config.functions_run_eagerly()


def test_an_argument_may_have_any_name():
    doubled = tf.function(lambda function: 2.0 * function)
    assert float(tfgc.recompute(lambda x: doubled(function=x))(tf.constant(3.0))) == 6.0


class Inner(keras.layers.Layer):
    """Its call is a `tf.function`, traced for the first time by whoever comes first."""

    def __init__(self):
        super().__init__()
        self.dense, self.dropout = keras.layers.Dense(8), keras.layers.Dropout(0.5)
        self.norm = keras.layers.BatchNormalization(momentum=0.5)

    def build(self, shape):
        self.dense.build(shape)
        self.norm.build((None, 8))

    @tf.function
    def call(self, x, training=None):
        return self.norm(self.dropout(self.dense(x), training=training), training=training)


@pytest.mark.parametrize("mode", mostly("graph"))
def test_a_function_inside_a_layer_is_not_spoilt_by_being_traced_here_first(mode):
    x, y = noise(16, 8), [noise(16, 4, seed=2)]

    def build():
        layers = [Inner(), keras.layers.Dense(8), Inner(), keras.layers.Dense(4)]
        return keras.Sequential([keras.Input((8,)), *layers])

    def run(enabled):
        model = fresh(build)
        if enabled:
            tfgc.enable(model, strategy="uniform")
        ours = train(model, x, y, graph=mode == "graph" or not enabled)
        tfgc.disable(model)
        return ours + train(model, x, y, graph=False)

    assert_equal(run(False), run(True), exact=False)


def chain(depth):
    layers = [layer for _ in range(depth) for layer in (keras.layers.Dense(8, "tanh"), keras.layers.Dropout(0.3))]
    return keras.Sequential([keras.Input((8,)), *layers, keras.layers.Dense(1)])


def in_threads(functions):
    """Run functions at the same time, and raise what one of them raised."""
    results, errors = [None] * len(functions), []

    def run(i, function):
        try:
            results[i] = function()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(functions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


@pytest.mark.gate
def test_functions_of_other_threads_stay_traced():
    """A thread that has nothing of tfgc calls a `tf.function` all the time while another one traces."""
    ran, done = [], threading.Event()

    @tf.function
    def other(x):
        ran.append(x)
        return x + 1.0

    other(tf.constant(0.0))
    traced, calls = len(ran), 0

    def call_on():
        nonlocal calls
        while not done.is_set() or not calls:
            other(tf.constant(0.0))
            calls += 1

    def train_on():
        try:
            for depth in (2, 3, 4):
                model = tfgc.enable(chain(depth), strategy="uniform")
                model.compile("sgd", "mse")
                model.fit(np.ones((8, 8)), np.ones((8, 1)), verbose=0)
        finally:
            done.set()

    in_threads([call_on, train_on])
    assert calls > 0
    assert len(ran) == traced


def together():
    """Two models in the fast suite, eight in the gate, each in one mode; eight in every other one if it may be slow."""
    yield 2, "compiled"
    yield pytest.param(8, "graph", marks=pytest.mark.gate)
    for mode in ("eager", "compiled", "fit", "xla"):
        yield pytest.param(8, mode, marks=pytest.mark.slow)


@pytest.mark.parametrize(("count", "mode"), together())
def test_models_train_in_threads_as_one_after_the_other(count, mode):
    x, y = noise(8, 8), noise(8, 1, seed=2)

    def prepared(i):
        keras.utils.set_random_seed(i)
        model = tfgc.enable(chain(2 + i % 2), strategy="uniform", verbose=0)
        variables = [v.value for v in model.trainable_variables]

        def step():
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
            for variable, gradient in zip(variables, tape.gradient(loss, variables)):
                variable.assign_sub(0.1 * gradient)
            return loss

        def fit():
            return model.fit(x, y, epochs=3, verbose=0, shuffle=False).history["loss"]

        if mode == "fit":
            model.compile("sgd", "mse")
        elif mode in ("graph", "xla"):
            step = tf.function(step, jit_compile=mode == "xla")
        losses = fit if mode == "fit" else lambda: [float(step()) for _ in range(3)]
        return lambda: losses() + [v.numpy() for v in variables]

    alone = [prepared(i)() for i in range(count)]
    at_once = in_threads([prepared(i) for i in range(count)])
    for one, other in zip(alone, at_once, strict=True):
        for expected, given in zip(one, other, strict=True):
            np.testing.assert_array_equal(expected, given)
