"""Raw random numbers of TensorFlow in a recomputed function: what the first run drew stands in the second one.

Operations have seeds of their own here, so that the stream does not depend on how many operations a graph has.
"""

import dataclasses
import functools
import random

import keras
import numpy as np
import pytest
import tensorflow as tf
from equality import assert_equal, fresh, in_pieces, in_turn, mostly, noise, train
from tensorflow.python.eager import context

import tfgc
from tfgc import Plan, Segment
from tfgc._framework import graph_optimizer

MODES = ("eager", "compiled", "graph")


class DropPath(keras.layers.Layer):
    """Stochastic depth as many published models write it."""

    def call(self, x, training=None):
        if not training:
            return x
        kept = tf.floor(0.5 + tf.random.uniform((tf.shape(x)[0],) + (1,) * (x.shape.rank - 1), seed=5))
        return x / 0.5 * kept


class Generated(keras.layers.Layer):
    """Draws from a `tf.random.Generator`."""

    def __init__(self):
        super().__init__()
        self.generator = tf.random.Generator.from_seed(7)

    def call(self, x):
        return x + self.generator.normal(tf.shape(x)) + self.generator.uniform(tf.shape(x)[:1])[:, None]


class Shuffled(keras.layers.Layer):
    def call(self, x):
        order = tf.random.shuffle(tf.range(tf.shape(x)[0]), seed=3)
        choice = tf.random.categorical(tf.zeros((1, 4)), 1, seed=4)[0]
        whole = tf.cast(tf.random.uniform((2,), 1, 9, tf.int32, seed=6), x.dtype)
        scale = tf.reduce_sum(whole) / 9.0 + tf.random.normal((1,), seed=9, dtype="float32")  # A type by its name.
        return tf.gather(tf.gather(x, order), choice, axis=1) * scale + x


LAYERS = {"DropPath": DropPath, "Generator": Generated, "shuffle": Shuffled}


def model_with(layer):
    def build():
        tf.random.set_seed(1)
        blocks = [part for _ in range(3) for part in (keras.layers.Dense(64, "tanh"), layer())]
        return keras.Sequential([keras.Input((4,)), *blocks, keras.layers.Dense(4)])

    return build


def crossings():
    """Fast are every layer by a plan in two modes, and the other ways in one mode and with one layer each."""
    for layer in LAYERS:
        for way, fast in {
            "enable": [(each, mode) for each in LAYERS for mode in ("eager", "compiled")],
            "layers": [("shuffle", "compiled")],
            "recompute": [("Generator", "eager")],
            "nested": [("DropPath", "graph")],
        }.items():
            for mode in MODES:
                marks = [] if (layer, mode) in fast else [pytest.mark.slow]
                yield pytest.param(layer, way, mode, marks=marks)


@pytest.mark.parametrize(("layer", "way", "mode"), crossings())
def test_gradients_with_what_was_drawn(layer, way, mode):
    build, x, y = model_with(LAYERS[layer]), noise(8, 4), [noise(8, 4, seed=2)]
    # TensorFlow seeds an eager operation and one in a graph alike only if both have a seed of their own.
    plain = train(fresh(build), x, y, graph=True)
    model = fresh(build)
    call = model
    if way == "enable":
        plan = tfgc.plan(model, strategy="uniform", segments=3)
        assert plan.segments[0].mode == "recompute"
        tfgc.enable(model, plan)
    elif way == "nested":
        tfgc.enable(model, nested_plan(model, x))
    elif way == "layers":
        chosen = [part for part in model.layers if isinstance(part, LAYERS[layer])]
        tfgc.enable(model, layers=chosen)
    else:
        call = tfgc.recompute(model)
        mode = "graph" if mode == "compiled" else mode
    ours = train(model, x, y, graph=mode == "graph", call=call)
    # The second run is traced, since only in a graph can stored numbers stand for an operation: it may round otherwise.
    assert_equal(plain, ours, exact=False)


@pytest.mark.parametrize(("mode", "layer"), in_turn(MODES, [DropPath, Generated]))
def test_gradients_while_numbers_are_checked(layer, mode):
    """TensorFlow's checks read what was drawn, in the replay what stands in its place."""
    build, x, y = model_with(layer), noise(8, 4), [noise(8, 4, seed=2)]
    plain = train(fresh(build), x, y, graph=True)
    model = fresh(build)
    tfgc.enable(model, tfgc.plan(model, strategy="uniform", segments=3))
    tf.debugging.enable_check_numerics()
    try:
        checked = train(model, x, y, graph=mode == "graph")
    finally:
        tf.debugging.disable_check_numerics()
    assert_equal(plain, checked, exact=False)


def nested_plan(model, x):
    """The first layers are run again as three segments, two of which run a third time."""
    plan = in_pieces(model, x)
    outer = tuple(name for segment in plan.segments[:3] for name in segment.nodes)
    inner = Plan(plan.segments[:3], "by hand", ())
    return dataclasses.replace(plan, segments=(Segment(outer, inner=inner), *plan.segments[3:]))


def test_a_seed_starts_the_draws_of_operations_anew():
    """What else is compared here rests on it: conftest.py keeps kernels, but not those that count their draws."""
    found = []
    for _ in range(2):
        keras.utils.set_random_seed(3)
        drawing = tf.function(lambda: tf.random.normal(()))
        found.append([float(draw()) for draw in (drawing, drawing, lambda: tf.random.uniform((), seed=2)) * 2])
    assert len({*found[0]}) == 6
    assert found[0] == found[1]


@pytest.mark.parametrize("mode", mostly("eager", "graph"))
def test_the_stream_goes_on_as_without_tfgc(mode):
    """A replay that drew again would leave the generator further on."""
    model = fresh(model_with(Generated))
    tfgc.enable(model, tfgc.plan(model, strategy="uniform", segments=3))
    train(model, noise(8, 4), [noise(8, 4, seed=2)], graph=mode == "graph")
    plain = fresh(model_with(Generated))
    train(plain, noise(8, 4), [noise(8, 4, seed=2)], graph=mode == "graph")
    for ours, other in zip(model.layers, plain.layers):
        if isinstance(ours, Generated):
            np.testing.assert_array_equal(ours.generator.state, other.generator.state)


@pytest.mark.parametrize("before", [0.0, 0.5])
def test_a_layer_that_has_changed_draws_and_scales_as_it_does_now(before):
    """Before, it may not have drawn at all."""

    class Scaled(keras.layers.Layer):
        scale = before

        def call(self, x):
            return tf.tanh(tf.tanh(x)) * tf.random.uniform(()) * self.scale if self.scale else tf.sin(x)

    layer = Scaled()
    fn, x = tfgc.recompute(layer), noise(8, 8)
    for scale in (before, 3.0, 0.25):
        layer.scale = scale
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = fn(x)
        drawn = y / tf.tanh(tf.tanh(x)) if scale else 1.0
        inner = tf.tanh(x)
        expected = (1 - tf.tanh(inner) ** 2) * (1 - inner**2) * drawn if scale else tf.cos(x)
        np.testing.assert_allclose(tape.gradient(y, x), expected, rtol=1e-4)


WAYS_TO_CHOOSE = {
    "enable": lambda model: tfgc.enable(model, tfgc.plan(model, strategy="uniform", segments=2)),
    "layers": lambda model: tfgc.enable(model, layers=model.layers[1:3]),
    "recompute": tfgc.recompute,
}


class Unseeded(DropPath):
    """As Keras's examples write it; `tf.random.set_seed` alone decides what is drawn."""

    def call(self, x, training=None):
        if not training:
            return x
        return x / 0.5 * tf.floor(0.5 + tf.random.uniform((tf.shape(x)[0], 1)))


@pytest.mark.parametrize(
    "options", [{"strategy": "uniform", "segments": 4}, {"layers": Unseeded}], ids=["plan", "layers"]
)
def test_equal_segments_of_an_eager_loop_draw_what_one_graph_would(options):
    """Functions of their own, all of which began with operation number 0, dropped the same samples everywhere."""

    x = tf.constant(noise(32, 128))

    def residual():
        x = inputs = keras.Input((128,))
        for i in range(4):
            x = keras.layers.Add()([x, Unseeded(name=f"drop_{i}")(keras.layers.Dense(128, "tanh")(x))])
        return keras.Model(inputs, x)

    def gradients(model):
        with tf.GradientTape() as tape:
            value = tf.reduce_sum(model(x, training=True) ** 2)
        return [value, *tape.gradient(value, [v.value for v in model.trainable_variables])]

    plain = fresh(residual)
    expected = tf.function(lambda: gradients(plain))()
    ours = tfgc.enable(fresh(residual), verbose=0, **options)
    for found, each in zip(gradients(ours), expected, strict=True):
        np.testing.assert_allclose(found, each, rtol=1e-4, atol=1e-3)


def test_an_eager_loop_where_no_seed_was_ever_set(monkeypatch):
    """TensorFlow has no stream of seeds then; Keras's own tests found it."""
    model = model_with(DropPath)()
    monkeypatch.setattr(context.context(), "_seed", None)
    monkeypatch.delattr(context.context(), "_rng")
    tfgc.enable(model, strategy="uniform", segments=2, verbose=0)
    with tf.GradientTape() as tape:
        value = tf.reduce_sum(model(tf.constant(noise(8, 4)), training=True) ** 2)
    assert all(g is not None for g in tape.gradient(value, [v.value for v in model.trainable_variables]))


class Chooses(keras.layers.Layer):
    """Chooses by Python's and NumPy's streams, as Keras's AugMix does, what it does and which weight it reads."""

    def __init__(self):
        super().__init__()
        self.factors = [
            self.add_weight(initializer=keras.initializers.Constant(c), name=f"f_{c}") for c in (2, 3, 5, 7)
        ]

    def call(self, x):
        return tf.tanh(x * random.choice(self.factors) * np.random.uniform())


@pytest.mark.parametrize(("way", "graph"), in_turn(WAYS_TO_CHOOSE, (False, True)))
def test_what_python_chooses_is_chosen_again(way, graph):
    def steps(switch):
        model = fresh(
            lambda: keras.Sequential(
                [keras.Input((4,)), keras.layers.Dense(4), Chooses(), Chooses(), keras.layers.Dense(4)]
            )
        )
        call = switch(model)
        keras.utils.set_random_seed(3)  # Python's and NumPy's, too
        return train(model, noise(8, 4), [noise(8, 4, seed=2)], graph=graph, call=call, steps=5), random.random()

    (plain, after), (ours, our_after) = steps(lambda model: None), steps(WAYS_TO_CHOOSE[way])
    assert len({tuple(name for name, g in step.gradients.items() if g is None) for step in plain}) > (not graph)
    assert_equal(plain, ours, exact=False)
    assert after == our_after


@pytest.mark.filterwarnings("ignore::tfgc.NotReplayableWarning")
def test_a_trace_that_fails_leaves_the_streams_of_python_where_they_were():
    """It is made again for what runs, and draws what a plain step draws."""

    class FailsOnce(keras.layers.Layer):
        failing = False

        def call(self, x):
            x = tf.tanh(x * random.random())
            if self.failing:
                self.failing = False
                raise ValueError("not in this graph")
            return x

    def drawn(enable):
        model = fresh(
            lambda: keras.Sequential([keras.Input((4,)), keras.layers.Dense(4), FailsOnce(), keras.layers.Dense(4)])
        )
        if enable:
            tfgc.enable(model, tfgc.plan(model, strategy="uniform", segments=2))
            model.layers[1].failing = True
        keras.utils.set_random_seed(3)
        made = tf.function(lambda: model(noise(8, 4), training=True), autograph=False)()
        return made.numpy().tolist(), random.random()

    assert drawn(enable=True) == drawn(enable=False)


class Dropping(keras.layers.Layer):
    """A layer with stochastic depth around its own kernel, as Keras's examples draw it: without a seed."""

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], 64))

    def call(self, x, training=None):
        made = tf.nn.gelu(x @ self.kernel)
        return x + made * tf.floor(0.5 + tf.random.uniform((tf.shape(x)[0], 1))) if training else x + made


def dropping(layer=Dropping):
    tf.random.set_seed(3)
    return keras.Sequential([keras.Input((64,)), *(layer() for _ in range(4)), keras.layers.Dense(4)])


def test_copies_draw_the_numbers_of_the_plain_graph():
    """Operations without a seed have a number in their graph: four blocks by one trace would draw alike."""
    x, y = noise(8, 64), [noise(8, 4, seed=2), noise(8, 4, seed=3)]
    plain = train(fresh(dropping), x, y, graph=True)
    model = fresh(dropping)
    tfgc.enable(model, in_pieces(model, x, 5))
    assert_equal(plain, train(model, x, y, graph=True), exact=False)


@tf.custom_gradient
def with_noisy_gradient(x):
    return 2.0 * x, lambda upstream: upstream * (1.0 + tf.random.uniform(tf.shape(x)[:1])[:, None])


class NoisyGradient(Dropping):
    """It draws once more in its gradient."""

    def call(self, x, training=None):
        return with_noisy_gradient(super().call(x, training=training))


class Seeded(Dropping):
    """One of its draws has a seed, and one that could be a number."""

    def call(self, x, training=None):
        kept = tf.random.uniform((tf.shape(x)[0], 1), seed=1) + tf.random.uniform((tf.shape(x)[0], 1), seed=2**30)
        return super().call(x, training=training) * kept


@pytest.mark.parametrize("layer", [NoisyGradient, Seeded])
def test_draws_in_gradients_and_by_seeds_are_those_of_the_plain_graph(layer):
    x, y = noise(8, 64), [noise(8, 4, seed=2), noise(8, 4, seed=3)]
    build = functools.partial(dropping, layer)
    plain = train(fresh(build), x, y, graph=True, lr=1e-4)
    model = fresh(build)
    tfgc.enable(model, in_pieces(model, x, 5))
    assert_equal(plain, train(model, x, y, graph=True, lr=1e-4), exact=False)


def test_recomputed_functions_draw_apart():
    """Each is a graph of its own, whose operations TensorFlow numbers from zero: both drew the same."""
    keras.utils.set_random_seed(3)
    x = tf.ones((64,))
    one, other = (tfgc.recompute(lambda x: x * tf.random.uniform((64,))) for _ in range(2))
    drawn = []
    for function in (one, other):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(function(x))
        drawn.append(tape.gradient(y, x).numpy())
    assert (drawn[0] != drawn[1]).mean() > 0.9


@pytest.mark.parametrize("in_eager_code_before", [False, True])
def test_calls_in_a_graph_draw_what_the_plain_graph_would(in_eager_code_before):
    """All calls by one trace drew the same; so did the code around them, which TensorFlow numbers from zero, too."""

    def drawn(wrap):
        keras.utils.set_random_seed(3)
        # Keras makes its generator there, so that TensorFlow traces twice.
        function = wrap(lambda x: x * tf.random.uniform((8,)) + tf.random.normal((8,)) * keras.random.normal((8,)))
        if in_eager_code_before:
            function(tf.ones((8,)))

        @tf.function
        def step(x):
            if x.shape.rank == 2:
                tf.random.set_seed(4)  # for this graph
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = [tf.random.uniform((8,)), function(x), tf.random.normal((8,)), function(x), tf.random.uniform((8,))]
            return [*y, tape.gradient(y, x)]

        return [step(tf.ones((8,))), step(tf.ones((8,))), step(tf.ones((8, 1)))]

    with graph_optimizer.off():
        for found, expected in zip(tf.nest.flatten(drawn(tfgc.recompute)), tf.nest.flatten(drawn(lambda fn: fn))):
            np.testing.assert_array_equal(found, expected)


@pytest.mark.filterwarnings("ignore::tfgc.NotReplayableWarning")
def test_a_recomputed_function_that_cannot_be_traced_draws_as_plain_code_does():
    def scaled(x):
        scale = random.random()
        return x * scale if float(tf.reduce_sum(x)) > 0.0 else x

    made = []
    for function in (scaled, tfgc.recompute(scaled)):
        keras.utils.set_random_seed(3)
        made.append([function(tf.ones(4)).numpy() for _ in range(2)])
    np.testing.assert_array_equal(*made)
