"""TensorFlow's own behaviour as judge: what is documented of `tf.recompute_grad`, asked of both wrappers.

Each case runs the plain function, `tf.recompute_grad` and `tfgc.recompute`: eagerly, inside of one
`tf.function`, and in a `tf.function` with the tape outside. Values and gradients of every output must be
those of the plain function. `FAILS` is the table of where `tf.recompute_grad` does not do what its page says, or
what it leaves out; a row that starts to pass after an upgrade is good news about TensorFlow.
"""

import functools

import keras
import memory
import numpy as np
import pytest
import tensorflow as tf
from equality import noise

import tfgc

X, Y, W = noise(4, 6), noise(4, 6, seed=2), noise(6, 6, seed=3)
BOTH = {"tf.recompute_grad": tf.recompute_grad, "tfgc": tfgc.recompute}
WRAPPERS = pytest.mark.parametrize("wrap", BOTH.values(), ids=BOTH)
MODES = ("eager", "graph", "tape outside")
CASES = {}


def case(function):
    """Each takes a wrapper and returns a function, its inputs, and what else has a gradient."""
    CASES[function.__name__] = function
    return function


@case
def a_variable_as_argument(wrap):
    variable = tf.Variable(W)
    block = wrap(lambda x, w: tf.tanh(x @ w))
    return lambda x: block(x, variable), [X], [variable]


@case
def a_tuple_of_outputs_of_which_one_counts_nothing(wrap):
    return wrap(lambda x: (tf.tanh(x), tf.argmax(x, axis=1))), [X], []


@case
def a_keyword_that_is_an_option(wrap):
    block = wrap(lambda x, scale=1.0: tf.tanh(x) * scale)
    return lambda x: block(x, scale=2.0), [X], []


@case
def a_keyword_that_is_a_tensor(wrap):
    block = wrap(lambda x, scale: tf.tanh(x) * scale)
    return lambda x, y: block(x, scale=y), [X, Y], []


@case
def an_argument_that_is_a_flag(wrap):
    block = wrap(lambda x, flag: tf.tanh(x) if flag else x)
    return lambda x: block(x, True), [X], []


@case
def a_function_in_a_block(wrap):
    variable = tf.Variable(W)
    inner = tf.function(lambda x: tf.tanh(x @ variable))
    return wrap(lambda x: inner(x) + tf.sin(x)), [X], [variable]


@case
def a_gradient_of_its_own_in_a_block(wrap):
    doubled = tf.custom_gradient(lambda x: (x * 1.0, lambda upstream: upstream * 2.0))
    return wrap(lambda x: tf.tanh(doubled(x))), [X], []


@case
def randomness_without_state(wrap):
    return wrap(lambda x: x * tf.random.stateless_uniform(tf.shape(x), seed=[1, 2])), [X], []


@case
def integer_inputs(wrap):
    table = tf.Variable(W)
    return wrap(lambda x, ids: x * tf.reduce_sum(tf.gather(table, ids))), [X, tf.constant([0, 2])], [table]


@case
def float64(wrap):
    return wrap(tf.tanh), [tf.cast(X, "float64")], []


@case
def bfloat16(wrap):
    return wrap(lambda x: x * x), [tf.cast(X, "bfloat16")], []


@case
def complex64(wrap):
    return wrap(lambda x: tf.abs(x * x)), [tf.complex(X, Y)], []


@case
def an_input_that_is_not_used(wrap):
    return wrap(lambda x, y: tf.tanh(x)), [X, Y], []


@case
def a_variable_without_a_gradient(wrap):
    used, other = tf.Variable(W), tf.Variable(W)
    return wrap(lambda x: x @ used + tf.stop_gradient(other[:4])), [X], [used, other]


@case
def a_tensor_closed_over(wrap):
    def step(x, y):
        skip = tf.exp(y)
        return wrap(lambda x: tf.tanh(x) * skip)(x)

    return step, [X, Y], []


@case
def branches_and_loops_in_a_block(wrap):
    def block(x):
        x = tf.cond(tf.reduce_sum(x) > 0.0, lambda: tf.tanh(x), lambda: tf.sin(x))
        return tf.while_loop(lambda i, _: i < 3, lambda i, x: (i + 1, tf.tanh(x)), (0, x))[1]

    return wrap(block), [X], []


@case
def a_block_in_a_branch(wrap):
    variable = tf.Variable(W)
    block = wrap(lambda x: tf.tanh(x @ variable))
    return lambda x: tf.cond(tf.constant(True), lambda: block(x), lambda: x), [X], [variable]


@case
def a_block_in_a_loop(wrap):
    variable = tf.Variable(W)
    block = wrap(lambda x: tf.tanh(x @ variable))
    return lambda x: tf.while_loop(lambda i, _: i < 3, lambda i, x: (i + 1, block(x)), (0, x))[1], [X], [variable]


# case: mode: the errors of tf.recompute_grad, or "wrong"
FAILS = {
    # Its page says `f(*x)`; keywords are passed on where the custom gradient allows it, which graphs do not.
    "a_keyword_that_is_an_option": {"graph": ValueError, "tape outside": ValueError},
    "a_keyword_that_is_a_tensor": {"eager": "wrong", "graph": ValueError, "tape outside": ValueError},
    "an_argument_that_is_a_flag": {"graph": TypeError, "tape outside": TypeError},
    # "A Tensor or sequence of Tensor outputs"; its fence for graphs is float32 and knows no outputs without gradient.
    "a_tuple_of_outputs_of_which_one_counts_nothing": {"tape outside": ValueError},
    "float64": {"tape outside": ValueError},
    # Zeros in place of None, which optimizers act on.
    "an_input_that_is_not_used": {"eager": "wrong", "graph": "wrong"},
    "a_variable_without_a_gradient": {"eager": "wrong", "graph": "wrong"},
    # "Only the function call and its inputs are recorded": what is closed over is not, and loses its gradient.
    "a_tensor_closed_over": dict.fromkeys(MODES, "wrong"),
    "a_block_in_a_branch": {"graph": AssertionError, "tape outside": AssertionError},
    "a_block_in_a_loop": {"graph": ValueError, "tape outside": ValueError},
}


def run(built, mode):
    """All outputs, and the gradients of the sum of them and of each.

    An output that is not asked for counts as one of gradient zero with both wrappers, so the gradients of
    single outputs are those that are zero where plain code has None; so are all with the tape outside, where
    TensorFlow gives zeros to what a backward function takes over.
    """
    call, inputs, sources = built
    call = tf.function(call) if mode == "tape outside" else call

    def step(*inputs):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch([x for x in inputs if not x.dtype.is_integer])
            outputs = call(*inputs)
            losses = [tf.reduce_sum(o * o) for o in tf.nest.flatten(outputs) if not o.dtype.is_integer]
            losses = [tf.add_n(losses), *losses]
        wanted = [*(x for x in inputs if not x.dtype.is_integer), *sources]
        alone = [tape.gradient(loss, wanted, unconnected_gradients="zero") for loss in losses[1:]]
        missing = "zero" if mode == "tape outside" else "none"
        return outputs, tape.gradient(losses[0], wanted, unconnected_gradients=missing), alone

    return (tf.function(step) if mode == "graph" else step)(*inputs)


def compare(expected, found):
    for a, b in zip(tf.nest.flatten(expected), tf.nest.flatten(found), strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            a, b = tf.convert_to_tensor(a), tf.convert_to_tensor(b)
            assert a.dtype == b.dtype
            number = "complex128" if a.dtype.is_complex else "float64"
            a, b = tf.cast(a, number).numpy(), tf.cast(b, number).numpy()
            assert a.shape == b.shape
            assert np.linalg.norm(a - b) <= 1e-5 * np.linalg.norm(a)


@functools.cache
def plainly(name, mode):
    return run(CASES[name](lambda f: f), mode)


def crossings():
    """`tf.recompute_grad` is fast where it fails, tfgc there and in one mode, by turns."""
    for i, name in enumerate(CASES):
        for mode in MODES:
            for wrapper, wrap in BOTH.items():
                fast = mode in FAILS.get(name, {}) or (wrapper == "tfgc" and mode == MODES[i % len(MODES)])
                marks = [] if fast else [pytest.mark.slow]
                yield pytest.param(name, mode, wrap, id=f"{name}-{mode}-{wrapper}", marks=marks)


@pytest.mark.parametrize(("name", "mode", "wrap"), crossings())
def test_values_and_gradients_are_those_of_the_plain_function(name, mode, wrap):
    expected = plainly(name, mode)
    fails = FAILS.get(name, {}).get(mode) if wrap is tf.recompute_grad else None
    if fails is None:
        compare(expected, run(CASES[name](wrap), mode))
    elif fails == "wrong":
        with pytest.raises(AssertionError):
            compare(expected, run(CASES[name](wrap), mode))
    else:
        with pytest.raises(fails):
            run(CASES[name](wrap), mode)


@WRAPPERS
def test_the_gradient_runs_every_block_again(wrap, tmp_path):
    """The page's own example: four calls print four times, and four times more for the gradient; ours never again."""
    variable, printed = tf.Variable(1.5), tmp_path / "printed.txt"

    def block(x):
        tf.print("running", output_stream=f"file://{printed}")
        return x * variable

    def step(call):
        with tf.GradientTape() as tape:
            x = tf.constant(1.0)
            for _ in range(4):
                x = call(x)
        return tape.gradient(x, variable)

    for call, times in ((block, 4), (wrap(block), 4 if wrap is tfgc.recompute else 8)):
        printed.write_text("")
        np.testing.assert_allclose(step(call), 4 * 1.5**3)
        assert printed.read_text().split() == ["running"] * times


@WRAPPERS
def test_the_wrapped_object_is_reachable_and_its_attributes_only_there(wrap):
    layer = keras.layers.Dense(3)
    layer.build((None, 6))
    block = wrap(layer)
    assert block.__wrapped__ is layer
    assert not hasattr(block, "variables")


def held(wrapper):
    """Arrays of the input's size that a tape holds after ten operations; `wrapper` is a name of `BOTH`, or None."""
    x = noise(500, 500)

    def block(x):
        for _ in range(10):
            x = tf.tanh(x)
        return x

    call = block if wrapper is None else BOTH[wrapper](block)
    block(x)
    before = memory.info("current")
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = call(x)
    held = memory.info("current") - before
    del y, tape
    return held / (500 * 500 * 4)


@pytest.mark.gate
@pytest.mark.parametrize("wrapper", BOTH)
def test_only_the_call_and_its_inputs_are_recorded(wrapper):
    """What the tape holds of ten operations is their result."""
    assert memory.alone(held, None) > 9
    assert memory.alone(held, wrapper) < 1.5


@WRAPPERS
def test_gradients_under_xla(wrap):
    variable = tf.Variable(W)

    def step(call):
        with tf.GradientTape() as tape:
            tape.watch(X)
            loss = tf.reduce_sum(call(call(X)) ** 2)
        return tape.gradient(loss, [X, variable])

    def block(x):
        return tf.tanh(x @ variable)

    compare(tf.function(step)(block), tf.function(step, jit_compile=True)(wrap(block)))


@WRAPPERS
def test_a_gradient_that_is_not_finite_stays_so_where_plain_code_has_it(wrap):
    """The fence of a graph must not spread it."""

    def step(call):
        def twice(x):
            return call(call(x)) + 1.0

        return tf.function(lambda x: run((twice, [x], []), "eager"))(tf.constant([1.0, 0.0]))

    def block(x):
        return tf.sqrt(x)

    expected = [np.isfinite(t) for t in tf.nest.flatten(step(block))]
    assert {bool(finite) for t in expected for finite in t.flat} == {True, False}
    for a, b in zip(expected, tf.nest.flatten(step(wrap(block))), strict=True):
        np.testing.assert_array_equal(a, np.isfinite(b))


@WRAPPERS
@pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
def test_third_order(wrap, graph):
    """TensorFlow's own test of higher orders: the product of squared hyperbolic tangents."""
    x = tf.constant([0.7, -0.4])

    def third(fn):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as middle:
                middle.watch(x)
                with tf.GradientTape() as inner:
                    inner.watch(x)
                    y = fn(x)
                first = inner.gradient(y, x)
            second = middle.gradient(first, x)
        return first, second, outer.gradient(second, x)

    run = tf.function(third) if graph else third

    def fn(x):
        return tf.reduce_prod(tf.tanh(x) ** 2)

    compare(run(fn), run(wrap(fn)))


def test_an_argument_of_a_function_stays_recomputed():
    """TensorFlow unwraps what has `__wrapped__` when a `tf.function` takes it as an argument."""

    @tf.function
    def gradient(call, x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = call(x)
        return tape.gradient(y, x)

    fn, other = tfgc.recompute(lambda x: tf.sin(tf.sin(x))), tfgc.recompute(lambda x: tf.cos(x))

    def count(call):
        definition = gradient.get_concrete_function(call, X).graph.as_graph_def()
        nodes = [*definition.node, *(node for function in definition.library.function for node in function.node_def)]
        return sum(node.op == "Sin" for node in nodes)

    assert [count(fn), count(fn.__wrapped__)] == [3, 2]  # no gradient needs the second one again
    np.testing.assert_allclose(gradient(fn, X), gradient(fn.__wrapped__, X))
    np.testing.assert_allclose(gradient(other, X), -tf.sin(X), rtol=1e-6)
    traces = gradient.experimental_get_tracing_count()
    gradient(fn, X)
    assert gradient.experimental_get_tracing_count() == traces
