"""Recomputed functions and enabled models inside of loops, branches and maps.

Each case is run plainly and recomputed. The gradient is taken outside of the construct
(through it), or inside of its body, as `steps_per_execution` does.
"""

import keras
import memory
import numpy as np
import pytest
import tensorflow as tf
from equality import assert_equal, fresh, in_turn, mostly, noise, train

import tfgc
from tfgc._step.trace import trace

X, W = noise(4, 12), noise(12, 12, seed=2) * 0.3  # W is more than what a graph takes over as a constant
HERE = tf.constant(True)


def plain_variable():
    """A function that closes over a plain variable and a tensor."""
    variable = tf.Variable(W)

    def call(x):
        return tf.tanh(x @ variable + tf.reduce_sum(W))

    return call, tfgc.recompute(call), [variable]


def layer():
    dense = keras.layers.Dense(12, activation="tanh")
    dense.build((None, 12))
    return dense, tfgc.recompute(dense), [dense.kernel.value]


def enabled():
    def build():
        layers = (keras.layers.Dense(12, activation="gelu", kernel_initializer="he_normal") for _ in range(5))
        return keras.Sequential([keras.Input((12,)), *layers])

    model = fresh(build)
    plan = tfgc.plan(model, len(X), strategy="uniform", segments=3)
    assert any(segment.mode == "recompute" for segment in plan.segments)
    tfgc.enable(model, plan)
    return lambda x: model(x, training=False), model, [v.value for v in model.trainable_variables]


KINDS = (plain_variable, layer, enabled)


def cases(names, *quick, rare=()):
    """Every name with every kind; fast are those of the first kind but `rare` ones, and `quick` ones of the others."""
    pairs = [(name, kind) for name in names for kind in KINDS]

    def slow(name, kind):
        return name in rare or (kind is not plain_variable and name not in quick)

    return pytest.mark.parametrize(
        ("name", "kind"),
        [
            pytest.param(*pair, marks=[pytest.mark.slow] * slow(*pair), id=f"{pair[0]}-{pair[1].__name__}")
            for pair in pairs
        ],
    )


def loop(call, x, **options):
    return tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, call(y)), (0, x), **options)[1]


def for_range(call, x):
    def run(x):
        for _ in tf.range(3):
            x = call(x)
        return x

    return tf.function(run)(x)


THROUGH = {
    "cond": lambda call, x: tf.cond(HERE, lambda: call(x), lambda: x),
    "cond, both branches": lambda call, x: tf.cond(HERE, lambda: call(call(x)), lambda: call(x) * 2.0),
    "switch_case": lambda call, x: tf.switch_case(tf.constant(1), [lambda: x, lambda: call(x), lambda: call(x * 2.0)]),
    "while_loop": loop,
    "for in tf.range": for_range,
    "scan": lambda call, x: tf.scan(lambda a, b: call(a) + b, tf.stack([x, x]), initializer=x),
    "map_fn": lambda call, x: tf.map_fn(call, tf.stack([x, x * 2.0])),
    "vectorized_map": lambda call, x: tf.vectorized_map(call, tf.stack([x, x * 2.0])),
    "while in cond": lambda call, x: tf.cond(HERE, lambda: loop(call, x), lambda: x),
    "cond in while": lambda call, x: loop(lambda y: tf.cond(HERE, lambda: call(y), lambda: y), x),
    "while in while": lambda call, x: loop(lambda y: loop(call, y), x),
    "function in while": lambda call, x: loop(tf.function(call), x),
    "keras while_loop": lambda call, x: keras.ops.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, call(y)), (0, x))[
        1
    ],
    "keras scan": lambda call, x: keras.ops.scan(lambda a, b: (call(a) + b, a), x, tf.stack([x, x]))[1],
    "keras cond": lambda call, x: keras.ops.cond(HERE, lambda: call(x), lambda: x),
    "keras vectorized_map": lambda call, x: keras.ops.vectorized_map(call, tf.stack([x, x])),
}


def close(plain, ours, rtol=1e-5):
    """Equal within `rtol` of each norm; a comparison of nothing but zeros proves nothing."""
    assert any(a is not None and np.linalg.norm(tf.convert_to_tensor(a)) > 0 for a in tf.nest.flatten(plain))
    for a, b in zip(tf.nest.flatten(plain), tf.nest.flatten(ours), strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            a, b = tf.convert_to_tensor(a), tf.convert_to_tensor(b)
            assert np.linalg.norm(a - b) <= rtol * np.linalg.norm(a)


def gradient(call, x, sources):
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(call(x) ** 2)
    return tape.gradient(loss, [x, *sources])


# Keras's functions come to those of TensorFlow; of nested ones, one is in the fast suite.
@cases(THROUGH, "while_loop", rare=["while in cond", "while in while", *(n for n in THROUGH if n.startswith("keras"))])
def test_gradient_through(name, kind):
    plain, ours, sources = kind()

    def through(call):
        return lambda x: THROUGH[name](call, x)

    step = tf.function(lambda call, x: gradient(through(call), x, sources))
    expected = step(plain, X)
    assert all(np.linalg.norm(g) > 0 for g in expected)
    close(expected, step(ours, X))
    close(expected, gradient(tf.function(through(ours)), X, sources))  # the tape outside, the backward pass apart
    if name == "vectorized_map":
        close(expected, gradient(through(ours), X, sources))


@pytest.mark.gate
@cases(["cond", "switch_case", "while_loop", "map_fn", "vectorized_map"], rare=["switch_case", "map_fn"])
def test_gradient_through_under_xla(name, kind):
    plain, ours, sources = kind()
    options = {"maximum_iterations": 3} if name == "while_loop" else {}  # XLA refuses others, plain ones too

    def run(call, x):
        return gradient(lambda x: THROUGH[name](call, x, **options), x, sources)

    close(tf.function(run)(plain, X), tf.function(run, jit_compile=True)(ours, X))


@pytest.mark.parametrize("name", ["cond", "while_loop", "map_fn"])
def test_rows_gathered_from_a_variable(name):
    """The operation reads the variable's handle, and a branch or body has another one."""
    table = tf.Variable(W)

    def plain(x):
        return tf.tanh(x + tf.gather(table, tf.constant([1])))

    def through(call):
        return lambda x: THROUGH[name](call, x)

    expected = gradient(through(plain), X, [table])
    close(expected, tf.function(lambda: gradient(through(tfgc.recompute(plain)), X, [table]))())
    close(expected, gradient(tf.function(through(tfgc.recompute(plain))), X, [table]))


@cases(["cond", "while_loop", "map_fn"], rare=["map_fn"])
def test_gradient_penalty_through(name, kind):
    """Second order: the replay is differentiated as well, down to the variables it reads."""
    plain, ours, sources = kind()

    @tf.function
    def step(call, x):
        with tf.GradientTape() as tape:
            slope = gradient(lambda x: THROUGH[name](call, x), x, [])[0]
            penalty = tf.reduce_sum(slope**2)
        return tape.gradient(penalty, sources)

    close(step(plain, X), step(ours, X))


INSIDE = {
    "while_loop": lambda take, x, zeros: tf.while_loop(
        lambda i, _: i < 3,
        lambda i, sums: (i + 1, [s + g for s, g in zip(sums, take(x * tf.cast(i, "float32")))]),
        (0, zeros),
        maximum_iterations=3,
    )[1],
    "cond": lambda take, x, zeros: tf.cond(HERE, lambda: take(x), lambda: zeros),
    "map_fn": lambda take, x, zeros: tf.map_fn(
        take, tf.stack([x, x * 2.0]), fn_output_signature=[tf.TensorSpec(z.shape) for z in zeros]
    ),
    "vectorized_map": lambda take, x, zeros: tf.vectorized_map(take, tf.stack([x, x * 2.0])),
}


@pytest.mark.parametrize("jit_compile", [None, pytest.param(True, marks=pytest.mark.slow)], ids=["graph", "xla"])
@cases(INSIDE, "while_loop")
def test_gradient_inside_of(name, kind, jit_compile):
    plain, ours, sources = kind()
    zeros = [tf.zeros_like(s) for s in (X, *sources)]

    def run(call, x):
        return INSIDE[name](lambda x: gradient(call, x, sources), x, zeros)

    close(tf.function(run)(plain, X), tf.function(run, jit_compile=jit_compile)(ours, X))


@cases(["cond"], "cond")
def test_gradient_in_a_branch_of_what_was_computed_outside(name, kind):
    plain, ours, sources = kind()

    @tf.function
    def step(call, x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = call(x)
        return tf.cond(HERE, lambda: tape.gradient(y, [x, *sources]), lambda: [x * 0.0, *sources])

    close(step(plain, X), step(ours, X))


@pytest.mark.filterwarnings("ignore::tfgc.NotReplayableWarning")  # in eager code branches that read other weights
@pytest.mark.parametrize(
    ("name", "graph"),
    in_turn(["cond", "switch_case", "while_loop", "map_fn", "vectorized_map", "scan"], (True, False)),
)
def test_control_flow_inside_of_the_recomputed_function(name, graph):
    variable = tf.Variable(W)

    def body(x):
        return THROUGH[name](lambda y: tf.tanh(y @ variable), x)

    def run(call):
        return gradient(call, X, [variable])

    run = tf.function(run) if graph else run
    close(run(body), run(tfgc.recompute(body)))
    close(run(body), run(tfgc.recompute(lambda x: THROUGH[name](tfgc.recompute(lambda y: tf.tanh(y @ variable)), x))))


class Gate(keras.layers.Layer):
    """Chooses one of two layers, as a mixture of experts or stochastic depth does."""

    def __init__(self, kind, **kwargs):
        super().__init__(**kwargs)
        self.kind, self.seed = kind, keras.random.SeedGenerator(1)
        self.experts = [keras.layers.Dense(12, activation="tanh") for _ in range(2)]

    def build(self, shape):
        for expert in self.experts:
            expert.build(shape)

    def call(self, x):
        first, second = self.experts
        positive = tf.reduce_mean(tf.abs(x)) >= 0.0
        if self.kind == "drawn":
            return keras.ops.cond(keras.random.uniform((), seed=self.seed) >= 0.0, lambda: first(x), lambda: second(x))
        if self.kind == "switch":
            return keras.ops.switch(tf.cast(positive, tf.int32), [second, first], x)
        if self.kind == "tensors":  # All weights are read outside of the branches.
            y, z = first(x), second(x)
            return tf.cond(positive, lambda: y * 2.0, lambda: z)
        return keras.ops.cond(positive, lambda: first(x), lambda: second(x))


@pytest.mark.parametrize(
    ("kind", "how"),
    in_turn(["cond", "drawn", "switch", "tensors"], [{"layers": Gate}, {"strategy": "sqrt"}, {"strategy": "keep_all"}]),
)
@pytest.mark.filterwarnings("ignore::tfgc.NotReplayableWarning")  # such branches run plainly
def test_what_a_branch_that_is_not_taken_reads_has_no_gradient_in_eager_code(kind, how):
    """TensorFlow gives zeros from a `tf.function`, by which weight decay would move it."""

    def found(enabled):
        model = fresh(lambda: keras.Sequential([keras.Input((12,)), Gate(kind), Gate(kind), keras.layers.Dense(2)]))
        if enabled:
            tfgc.enable(model, verbose=0, **how)
        weights = [variable.value for variable in model.trainable_variables]
        for _ in range(2):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(X, training=True) ** 2)
            gradients = tape.gradient(loss, weights)
        return gradients

    plain, ours = found(False), found(True)
    assert [gradient is None for gradient in ours] == [gradient is None for gradient in plain]
    assert sum(gradient is None for gradient in plain) == 4
    close(*([g for g in gradients if g is not None] for gradients in (plain, ours)))


def test_recompute_in_a_branch_on_an_eager_tensor():
    fn = tfgc.recompute(tf.tanh)

    @tf.function
    def step(call):
        with tf.GradientTape() as tape:
            tape.watch(X)
            y = tf.cond(tf.reduce_sum(X) > -1e9, lambda: call(X), lambda: X)
        return tape.gradient(y, X)

    np.testing.assert_array_equal(step(tf.tanh), step(fn))


@pytest.mark.parametrize("unroll", [False, True])
def test_recurrent_layer_whose_cell_is_recomputed(unroll):
    class Cell(keras.layers.Layer):
        def __init__(self, wrap):
            super().__init__()
            self.units = self.state_size = 12
            self.inner = keras.layers.Dense(12, activation="tanh")
            self.noise = keras.layers.Dropout(0.5, seed=3)
            self.inner.build((None, 24))
            self.run = wrap(lambda x, training: self.noise(self.inner(x), training=training))

        def call(self, x, states, training=None):
            y = self.run(tf.concat([x, states[0]], axis=-1), training)
            return y, [y]

    def steps(wrap):
        def build():
            return keras.Sequential([keras.Input((5, 12)), keras.layers.RNN(Cell(wrap), unroll=unroll)])

        return train(fresh(build), noise(4, 5, 12), [noise(4, 12)], graph=True)

    assert_equal(steps(lambda f: f), steps(tfgc.recompute), exact=False)


def peak_of_a_loop(recomputed):
    def deep(x):
        for _ in range(10):
            x = tf.tanh(x + 1.0)
        return x

    call = tfgc.recompute(deep) if recomputed else deep
    step = tf.function(lambda x: gradient(lambda x: loop(call, x), x, [])[0])
    return memory.peak(step, noise(500, 500))


@pytest.mark.gate
def test_a_loop_of_recomputed_steps_stores_only_what_enters_each():
    plain, ours = (memory.alone(peak_of_a_loop, recomputed) for recomputed in (False, True))
    assert ours < 0.65 * plain


@pytest.mark.parametrize("graph", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["eager", "graph"])
@cases(["loop", "vectorized"])
def test_jacobians(name, kind, graph):
    pfor = name == "vectorized"
    plain, ours, sources = kind()

    def run(call):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(X)
            y = call(X)
        whole = tape.jacobian(y, [X, *sources], experimental_use_pfor=pfor)
        return whole, tape.batch_jacobian(y, X, experimental_use_pfor=pfor)

    run = tf.function(run) if graph else run
    close(run(plain), run(ours))


def forward_mode(order, call, sources):
    def accumulate():
        return tf.autodiff.ForwardAccumulator(X, tf.ones_like(X))

    if order == "of a variable":
        with tf.autodiff.ForwardAccumulator(sources[0], sources[0] * 2.0) as outer:
            y = call(X)
        return outer.jvp(y)
    if order == "once":
        with accumulate() as outer:
            y = call(X)
        return outer.jvp(y)
    if order == "over a gradient":
        with accumulate() as outer:
            slopes = gradient(call, X, sources)
        return [outer.jvp(g) for g in slopes]
    with accumulate() as outer:
        with accumulate() as inner:
            y = call(X)
        tangent = inner.jvp(y)
    return outer.jvp(tangent)


@pytest.mark.parametrize("place", mostly("eager", modes=("eager", "graph", "over a graph")))
@cases(["once", "twice", "over a gradient", "of a variable"], "once")
def test_forward_mode(name, kind, place):
    def run(call):
        def step():
            return forward_mode(name, tf.function(call) if place == "over a graph" else call, sources)

        return (tf.function(step) if place == "graph" else step)()

    plain, ours, sources = kind()
    expected = run(plain)
    assert all(t is not None for t in tf.nest.flatten(expected))
    close(expected, run(ours))


@cases(["once", "of a variable"], "of a variable")
def test_forward_mode_through_a_branch_is_right_or_an_error(name, kind):
    """Inside of a `tf.function` TensorFlow differentiates a copy of the branch, if no tangent was seen in it."""
    plain, ours, sources = kind()

    def branch(call):
        return lambda x: THROUGH["cond"](call, x)

    def run(call):
        return forward_mode(name, call, sources)

    expected = run(branch(plain))
    close(expected, run(branch(ours)))
    if name == "once":
        close(expected, run(tf.function(branch(ours))))  # TensorFlow itself has no tangents of variables there
        close(expected, tf.function(lambda: run(branch(ours)))())
        return
    with pytest.raises(tfgc.UnsupportedModelError, match=r"tf\.cond.*a copy.*call a function there that is not"):
        tf.function(lambda: run(branch(ours)))()


def test_forward_mode_through_a_loop_is_right_or_an_error():
    def plain(x):
        return tf.tanh(x @ W)

    def run(call):
        return forward_mode("once", call, [])

    def around(call):
        return lambda x: loop(call, x)

    close(run(around(plain)), run(tf.function(around(tfgc.recompute(plain)))))
    with pytest.raises(tfgc.UnsupportedModelError, match=r"tf\.while_loop.*a copy"):
        tf.function(lambda: run(around(tfgc.recompute(plain))))()


def test_lists_of_an_open_batch_count_as_those_of_a_known_one():
    """A loop over time walks over tensors whose second size is the batch: they counted as nothing if open."""
    model = keras.Sequential([keras.Input((20, 8)), keras.layers.SimpleRNN(64, return_sequences=True)])

    @tf.function(autograph=False)
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x, training=True))
        return tape.gradient(loss, [v.value for v in model.trainable_variables])

    def lists(batch):
        ops = trace(step, tf.TensorSpec((batch, 20, 8)), shapes=[tf.TensorShape((64, 20, 8))]).step.ops.values()
        return [op.sizes for op in ops if op.type == "TensorListFromTensor"]

    assert lists(None) == lists(64) == [(64 * 20 * 8 * 4,), (64 * 20 * 64 * 4,)]
