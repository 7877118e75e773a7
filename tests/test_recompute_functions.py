"""`tfgc.recompute` on functions of every shape.

Each function is called plainly and recomputed, in eager mode and inside
`tf.function`; results and gradients must be the same, None and sparse included.
"""

import collections
import dataclasses
import functools
import gc
import sys
import threading
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf
from equality import noise

import tfgc
from tfgc._errors import NotReplayableWarning
from tfgc._framework import graph_optimizer
from tfgc._pairs import joint
from tfgc._step import trace as step_trace

Pair = collections.namedtuple("Pair", ["left", "right"])
X, W = noise(4, 3), noise(3, 3, seed=2)
BOTH = pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])


def gradients(call, inputs, sources=None, *, graph=False):
    """Results and gradients of the sum of all floating results."""

    def step():
        with tf.GradientTape() as tape:
            tape.watch([x for x in tf.nest.flatten(inputs) if x.dtype.is_floating])
            results = call(*inputs)
            floats = [r for r in tf.nest.flatten(results) if tf.is_tensor(r) and r.dtype.is_floating]
            loss = tf.add_n([tf.reduce_sum(tf.cast(r, "float32") * (i + 1.0)) for i, r in enumerate(floats)])
        return results, tape.gradient(loss, list(sources or tf.nest.flatten(inputs)))

    return (tf.function(step) if graph else step)()


def same(a, b):
    tf.nest.assert_same_structure(a, b)
    for p, q in zip(tf.nest.flatten(a), tf.nest.flatten(b)):
        assert type(p) is type(q)
        if isinstance(p, tf.IndexedSlices):
            np.testing.assert_array_equal(p.indices, q.indices)
            p, q = p.values, q.values
        if p is not None and tf.is_tensor(p):
            assert p.dtype == q.dtype
            np.testing.assert_array_equal(p, q)
        else:
            assert p == q


def check(fn, *inputs, sources=None, graph=False):
    for _ in range(3):
        plain = gradients(fn, inputs, sources, graph=graph)
        ours = gradients(tfgc.recompute(fn), inputs, sources, graph=graph)
        same(plain, ours)
    return plain


@BOTH
def test_arguments_of_every_kind(graph):
    def fn(x, flag, name, nothing=None, *, scale=1.0, table=None):
        assert name == "sum"
        assert nothing is None
        return tf.reduce_sum(x, axis=0) * scale + table["w"] if flag else x

    recomputed = tfgc.recompute(fn)

    def call(f):
        return lambda x, w: f(x, True, "sum", scale=2.0, table={"w": w, "note": "text"})

    same(gradients(call(fn), (X, W), graph=graph), gradients(call(recomputed), (X, W), graph=graph))


@BOTH
def test_a_tensor_that_is_given_or_returned_twice_is_one_tensor(graph):
    """What comes together there was added up in another order. Self-attention is called so."""

    def fn(a, b):
        y = tf.sin(a) * 0.7 + b * b * 0.3 + b * a
        return {"a": y, "b": y}, y

    def call(f):
        def called(x):
            made, y = f(x, x)
            assert made["a"] is made["b"] is y
            return made["a"] * 0.9 + made["b"] * 1.7 + tf.tanh(y)

        return called

    with graph_optimizer.off():
        plain = gradients(call(fn), (noise(64, 8),), graph=True)
        same(plain, gradients(call(tfgc.recompute(fn)), (noise(64, 8),), graph=graph))
    same(tfgc.recompute(fn)(X, X * 2.0), fn(X, X * 2.0))


def test_a_call_by_a_known_trace_starts_no_thread(monkeypatch):
    """Traces have threads of their own: a third of the time of a small call."""
    recomputed = tfgc.recompute(keras.layers.Dense(3))
    gradients(recomputed, (X,))
    monkeypatch.setattr(threading.Thread, "start", lambda _: pytest.fail("a thread"))
    gradients(recomputed, (X,))


@dataclasses.dataclass
class Config:
    scale: float


@pytest.mark.parametrize("wrap", [lambda v: v, lambda v: np.float32([v]), Config], ids=["number", "array", "object"])
def test_arguments_that_are_no_tensors_are_those_of_this_call(wrap):
    fn = tfgc.recompute(lambda x, a: x * getattr(a, "scale", a))
    for value in (2.0, 3.0, 2.0):
        with tf.GradientTape() as tape:
            tape.watch(X)
            y = fn(X, wrap(value))
        np.testing.assert_allclose(tape.gradient(y, X), tf.fill(X.shape, value))


def test_arguments_are_not_kept_alive():
    class Big:
        scale = 1.0

    fn = tfgc.recompute(lambda x, a: x * a.scale)
    objects = [Big() for _ in range(5)]
    alive = [weakref.ref(o) for o in objects]
    for o in objects:
        fn(X, o)
    del o, objects
    gc.collect()
    assert not any(ref() for ref in alive)


@BOTH
@pytest.mark.parametrize(
    "fn",
    [
        lambda x, w: Pair(x @ w, tf.tanh(x)),
        lambda x, w: {"b": [x @ w, (tf.tanh(x),)], "a": w},
        lambda x, w: (x, tf.argmax(x, axis=1), x @ w),
        lambda x, w: x,
        lambda x, w: (w, x),
        lambda x, w: [x * 2.0, None, "text", 3],
        lambda x, w: tf.cast(x, "float64") @ tf.cast(w, "float64"),
        lambda x, w: tf.sin(x) if x.dtype.is_floating else x,
    ],
    ids=["namedtuple", "dict", "integers", "input", "swapped", "not tensors", "float64", "one input unused"],
)
def test_results_of_every_structure(fn, graph):
    def take(f):
        return lambda x, w: [r for r in tf.nest.flatten(f(x, w)) if tf.is_tensor(r)]

    recomputed = tfgc.recompute(fn)
    for _ in range(3):
        same(gradients(take(fn), (X, W), graph=graph), gradients(take(recomputed), (X, W), graph=graph))
    with tf.GradientTape() as tape:
        tape.watch([X, W])
        same(fn(X, W), recomputed(X, W))


@BOTH
def test_structured_inputs_one_tensor_passed_twice_and_empty_batches(graph):
    def nested(pair, table):
        return pair.left * table["x"] + pair.right

    check(lambda a, b, c: nested(Pair(a, b), {"x": c}), X, X, X, graph=graph)
    recomputed = tfgc.recompute(nested)
    plain = gradients(lambda x: nested(Pair(x, x), {"x": x}), (X,), graph=graph)
    ours = gradients(lambda x: recomputed(Pair(x, x), {"x": x}), (X,), graph=graph)
    np.testing.assert_allclose(plain[1][0], ours[1][0], rtol=4 * 3 * 1.2e-7)
    check(lambda x: tf.nn.relu(x @ W), tf.zeros((0, 3)), graph=graph)


def test_ragged_and_sparse_inputs():
    ragged = tf.ragged.constant([[1.0, 2.0], [3.0]])
    sparse = tf.sparse.from_dense([[0.0, 2.0], [3.0, 0.0]])
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([ragged.values, sparse.values])
        squares = tfgc.recompute(lambda r: r.values**2)(ragged)
        dense = tfgc.recompute(lambda s: tf.sparse.to_dense(s) ** 2)(sparse)
    np.testing.assert_array_equal(squares, [1.0, 4.0, 9.0])
    np.testing.assert_array_equal(dense, [[0.0, 4.0], [9.0, 0.0]])
    np.testing.assert_array_equal(tape.gradient(squares, ragged.values), [2.0, 4.0, 6.0])
    np.testing.assert_array_equal(tape.gradient(dense, sparse.values), [4.0, 6.0])


@BOTH
def test_layer_not_yet_built(graph):
    def build():
        keras.utils.set_random_seed(3)
        return keras.Sequential([keras.layers.Dense(4), keras.layers.Dropout(0.5), keras.layers.Dense(2)])

    plain, ours = build(), build()

    def call(f):
        return lambda x: f(x, training=True)

    same(gradients(call(plain), (X,), graph=graph), gradients(call(tfgc.recompute(ours)), (X,), graph=graph))
    for v, w in zip(plain.variables, ours.variables, strict=True):
        np.testing.assert_array_equal(v, w)


@BOTH
@pytest.mark.parametrize("unused", ["never", "no gradient"])
def test_none_gradients_stay_none(unused, graph):
    used, other = tf.Variable(W), tf.Variable(W)

    def fn(x):
        if unused == "no gradient":
            x = x + tf.stop_gradient(other[0])
        return x @ used

    _, (dx, dw, dother) = check(fn, X, sources=[X, used, other], graph=graph)
    assert dx is not None
    assert dw is not None
    assert dother is None


@BOTH
def test_unused_keras_variable_is_not_moved_by_adam(graph):
    class Layer(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.used = self.add_weight(shape=(3, 3), initializer="ones")
            self.unused = self.add_weight(shape=(3, 3), initializer="ones")

        def call(self, x):
            return x @ self.used + 0.0 * keras.ops.sum(keras.ops.stop_gradient(self.unused))

    layer = Layer()
    _, grads = gradients(tfgc.recompute(layer), (X,), [layer.used.value, layer.unused.value], graph=graph)
    assert grads[0] is not None
    assert grads[1] is None
    _, theirs = gradients(tf.recompute_grad(layer), (X,), [layer.used.value, layer.unused.value])
    assert theirs[1] is not None  # what the peer does: zeros, which Adam and weight decay act on


@BOTH
def test_embedding_gradient_stays_sparse(graph):
    embedding = keras.layers.Embedding(50, 4)
    embedding.build((None,))
    ids = tf.constant([[1, 2, 2], [0, 1, 49]])
    sources = [embedding.embeddings.value]
    _, grads = check(lambda ids: embedding(ids), ids, sources=sources, graph=graph)
    assert isinstance(grads[0], tf.IndexedSlices)
    _, theirs = gradients(tf.recompute_grad(embedding), (ids,), sources)
    assert not isinstance(theirs[0], tf.IndexedSlices)  # what the peer does: a dense vocabulary


@BOTH
@pytest.mark.parametrize("shape", [(), (4, 3), (300, 1)], ids=["scalar", "matrix", "large"])
def test_closed_over_tensors_get_their_gradient(shape, graph):
    upstream = noise(*shape, seed=5) if shape else tf.constant(1.5)

    def step(wrapper):
        def run(x, w):
            with tf.GradientTape() as tape:
                tape.watch([x, w])
                skip = w * 2.0
                y = wrapper(lambda x: tf.reduce_sum(tf.tanh(x)) * tf.reduce_sum(skip * skip))(x)
            return y, tape.gradient(y, [x, w])

        return (tf.function(run) if graph else run)(X, upstream)

    plain, ours, theirs = step(lambda f: f), step(tfgc.recompute), None
    same(plain, ours)
    if not graph:
        theirs = step(tf.recompute_grad)
        assert theirs[1][1] is None or not np.allclose(theirs[1][1], plain[1][1])  # what the peer does


@BOTH
def test_closure_that_changes_between_calls(graph):
    """What a function closes over is looked up at every call, not at the first."""
    box = {}
    recomputed = tfgc.recompute(lambda x: tf.sin(x) * box["skip"])

    def step(call, x, w):
        with tf.GradientTape() as tape:
            tape.watch([x, w])
            box["skip"] = tf.exp(w) if box.get("traced") else w * 1.0
            y = tf.reduce_sum(call(x))
        return y, tape.gradient(y, [x, w])

    def plain(x):
        return tf.sin(x) * box["skip"]

    for box["traced"] in (False, True, True):
        run = tf.function(step) if graph else step
        same(run(plain, X, X), run(recomputed, X, X))
    box["skip"] = tf.constant(2.0)  # nothing to differentiate: cached as closed
    recomputed(X)
    box["traced"] = True
    same(step(plain, X, X), step(recomputed, X, X))


@BOTH
def test_plain_tf_variables_in_a_layer_and_a_module(graph):
    class Layer(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.scale = tf.Variable(2.0)
            self.frozen = tf.Variable(3.0, trainable=False)
            self.dense = keras.layers.Dense(3)

        def call(self, x):
            return self.dense(x) * self.scale * self.scale + self.frozen

    layer = Layer()
    layer(X)
    check(lambda x: layer(x), X, sources=[layer.scale, layer.dense.kernel.value], graph=graph)


def test_a_variable_read_through_keras_and_past_it_gets_both_gradients():
    layer = keras.layers.Dense(3)
    layer.build((None, 3))
    raw = layer.kernel.value

    def fn(x):
        return layer(x) @ raw

    def gradient(call):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(call(X) ** 2)
        return tape.gradient(loss, raw)

    np.testing.assert_allclose(gradient(fn), gradient(tfgc.recompute(fn)), rtol=1e-5, atol=1e-4)


@BOTH
def test_recompute_inside_recompute(graph):
    dense, dropout = keras.layers.Dense(3), keras.layers.Dropout(0.5, seed=1)
    dense.build((None, 3))

    def build(wrap):
        return wrap(lambda x: wrap(lambda y: dropout(dense(y), training=True))(tf.tanh(x)) + wrap(dense)(x))

    plain, ours = build(lambda f: f), build(tfgc.recompute)
    sources = [X, dense.kernel.value]
    dropout.seed_generator.state.assign([1, 0])
    first = gradients(plain, (X,), sources, graph=graph)
    state = dropout.seed_generator.state.numpy()
    dropout.seed_generator.state.assign([1, 0])
    second = gradients(ours, (X,), sources, graph=graph)
    np.testing.assert_array_equal(first[0], second[0])
    for a, b in zip(first[1], second[1]):
        np.testing.assert_allclose(a, b, rtol=4 * 4 * 1.2e-7, atol=1e-6)
    np.testing.assert_array_equal(state, dropout.seed_generator.state.numpy())


@BOTH
def test_second_order_gradient_penalty(graph):
    """As in WGAN-GP: the norm of a gradient is part of the loss."""
    first, second = keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)
    for layer, n in ((first, 3), (second, 8)):
        layer.build((None, n))
    sources = [first.kernel.value, second.kernel.value]

    def step(wrapper):
        blocks = [wrapper(lambda x: first(x)), wrapper(lambda x: second(x))]

        def run(x):
            with tf.GradientTape() as outer:
                with tf.GradientTape() as inner:
                    inner.watch(x)
                    y = tf.reduce_sum(blocks[1](blocks[0](x)))
                slope = inner.gradient(y, x)
                loss = y + tf.reduce_sum(slope**2)
            return slope, outer.gradient(loss, sources)

        return (tf.function(run) if graph else run)(X)

    plain, ours = step(lambda f: f), step(tfgc.recompute)
    for a, b in zip(tf.nest.flatten(plain), tf.nest.flatten(ours)):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    with pytest.raises(NotImplementedError):
        step(tf.recompute_grad)  # what the peer does


@BOTH
def test_forward_mode_is_right(graph):
    layer = keras.layers.Dense(2, activation="tanh")
    layer.build((None, 3))

    def run(call):
        def jvp():
            with tf.autodiff.ForwardAccumulator(X, tf.ones_like(X)) as accumulator:
                y = call(X)
            return accumulator.jvp(y)

        return (tf.function(jvp) if graph else jvp)()

    np.testing.assert_allclose(run(layer), run(tfgc.recompute(layer)), rtol=1e-6)


@BOTH
def test_forward_mode_over_what_is_closed_over_is_right(graph):
    variable, upstream = tf.Variable(W), noise(3, 3, seed=8)

    def run(wrapper):
        def jvp():
            fn = wrapper(lambda x: tf.tanh(x @ variable @ upstream))
            fn(X)  # so that it is known as a function that closes over nothing recorded
            with tf.autodiff.ForwardAccumulator([variable, upstream], [variable * 2.0, upstream]) as accumulator:
                y = fn(X)
            return accumulator.jvp(y)

        return (tf.function(jvp) if graph else jvp)()

    np.testing.assert_allclose(run(lambda f: f), run(tfgc.recompute), rtol=1e-6)


def test_gradient_through_a_function_that_only_runs_forward():
    """The tape is outside: the backward pass is another graph."""
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4), keras.layers.Dropout(0.5, seed=2)])
    sources = [X, model.layers[0].kernel.value]

    def found(call):
        model.layers[1].seed_generator.state.assign([5, 0])
        forward = tf.function(lambda x: call(x, training=True))
        return gradients(forward, (X,), sources)

    same(found(model), found(tfgc.recompute(model)))


@BOTH
@pytest.mark.parametrize("op", ["random", "gamma", "branch", "assign", "table", "py_function", "print"])
def test_what_must_not_run_twice_runs_once(op, graph, tmp_path):
    """Its results are stored for the backward pass, and the rest is made again."""
    said = tmp_path / "said.txt"

    def run(wrap):
        tf.random.set_seed(3)
        said.write_text("")
        counter = tf.Variable(1.0, trainable=False)
        table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 2.0)
        key, noisy = tf.constant(1, tf.int64), tf.function(lambda x: x * tf.random.normal(tf.shape(x)))

        def fn(x):
            y = tf.tanh(x)
            if op == "random":
                y = noisy(y) * tf.random.uniform(tf.shape(x))
            elif op == "gamma":  # whose gradient goes through the draw
                y *= tf.random.gamma((), x[0, 0] + 3.0)
            elif op == "branch":
                y = tf.cond(x[0, 0] > -9, lambda: y * tf.random.uniform(()), lambda: y)
            elif op == "assign":
                y *= counter.assign_add(1.0)
            elif op == "table":
                y *= table.lookup(key)
                table.insert(key, 5.0)
            elif op == "py_function":
                y = tf.py_function(lambda t: t * said.write_text(f"{said.read_text()}-"), [y], "float32")
            else:
                tf.print("-", output_stream=f"file://{said}")
            return tf.tanh(y)

        call = wrap(fn)

        def step():
            with tf.GradientTape(persistent=True) as tape:
                tape.watch(X)
                y = call(X)
            counter.assign_add(1.0)  # What was read stays what it was.
            # TensorFlow itself has one gradient of a py_function.
            return [y, *(tape.gradient(y, X) for _ in range(2 - (op == "py_function")))]

        step = tf.function(step)
        with graph_optimizer.off():
            made = step() if graph else plain_or_eager(step, wrap)
        return made, float(counter), float(table.lookup(key)), len(said.read_text().split("-"))

    def plain_or_eager(step, wrap):
        return step() if wrap is plainly else step.python_function()

    def plainly(fn):
        return fn

    plain, ours = run(plainly), run(tfgc.recompute)
    assert plain[1:] == ours[1:]
    assert float(tf.norm(plain[0][1])) > 0
    if graph or op not in ("random", "branch"):  # Eager code draws by seeds of its own.
        for a, b in zip(plain[0], ours[0]):
            np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(ours[0][1], ours[0][-1])


@BOTH
def test_tensor_arrays_are_kept_with_a_warning(graph):
    def run(call):
        def step():
            with tf.GradientTape() as tape:
                tape.watch(X)
                array = call(tf.TensorArray("float32", 4), X)
                loss = tf.reduce_sum(array.stack() ** 2)
            return tape.gradient(loss, X)

        return (tf.function(step) if graph else step)()

    def fn(array, x):
        return array.unstack(tf.sin(x))

    with pytest.warns(NotReplayableWarning, match="TensorArray"):
        ours = run(tfgc.recompute(fn))
    np.testing.assert_array_equal(run(fn), ours)


def test_gradients_are_those_of_what_python_did_in_the_call():
    layer = keras.layers.Dense(3)
    layer.build((None, 3))
    turns = iter([True, False])
    with tf.GradientTape() as tape:
        tape.watch(X)
        y = tfgc.recompute(lambda x: layer(x) if next(turns) else tf.tanh(x))(X)
    np.testing.assert_array_equal(tape.gradient(y, X), tf.ones((4, 3)) @ tf.transpose(layer.kernel))
    assert next(turns) is False


class Scaled(tf.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.parts = tf.Variable(W), {"factor": [2.0]}

    def __call__(self, x):
        return tf.tanh(x @ self.weight) * self.parts["factor"][0] * FACTOR


FACTOR = 1.0


def test_code_that_reads_the_same_is_traced_once_and_else_anew(monkeypatch):
    module, traced = Scaled(), []
    monkeypatch.setattr(joint, "Trace", lambda *args: traced.append(1) or step_trace.Trace(*args))
    call = tfgc.recompute(module)

    def check(times):
        traced.clear()
        same(gradients(module, (X,), [X, module.weight]), gradients(call, (X,), [X, module.weight]))
        assert bool(traced) == times

    with graph_optimizer.off():
        check(True)
        check(False)
        module.parts["factor"][0] = 3.0
        check(True)
        monkeypatch.setattr(sys.modules[__name__], "FACTOR", 5.0)
        check(True)
        check(False)


def test_users_own_errors_come_through_and_are_forgotten():
    broken = [True]

    def fn(x):
        if broken[0]:
            raise NotImplementedError
        return tf.tanh(x)

    recomputed = tfgc.recompute(fn)
    with pytest.warns(NotReplayableWarning), pytest.raises(NotImplementedError):
        recomputed(X)
    broken[0] = False
    with tf.GradientTape() as tape:
        tape.watch(X)
        y = recomputed(X)
    np.testing.assert_allclose(tape.gradient(y, X), 1 - y**2, rtol=1e-5, atol=1e-6)


def test_symbolic_call_is_refused():
    with pytest.raises(tfgc.UnsupportedModelError, match="enable"):
        tfgc.recompute(keras.layers.Dense(2))(keras.Input((3,)))


def test_a_maximum_of_a_later_result_is_of_that_result():
    """Grappler would take it of the first one, as it does in plain TensorFlow behind `tf.split`."""

    def made(x):
        return 10 * tf.tanh(x), tf.cos(x)

    def largest(second):
        return tf.reduce_max(tf.sigmoid(second), axis=1)

    def run(made, largest, x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            first, second = made(x)
            value = tf.reduce_sum(first) + tf.reduce_sum(largest(second))
        return value, tape.gradient(value, x)

    x = noise(4, 8)
    ours = tf.function(lambda x: run(tfgc.recompute(made), tfgc.recompute(largest), x))
    for expected, found in zip(run(made, largest, x), ours(x)):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


class Frozen(keras.layers.Layer):
    """A convolution whose bias alone trains."""

    def build(self, shape):
        self.kernel = self.add_weight(shape=(3, 3, shape[-1], 8), trainable=False)
        self.bias = self.add_weight(shape=(8,))

    def call(self, x):
        return tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, self.kernel, 1, "SAME"), self.bias))


def test_gradients_are_traced_by_what_tapes_watch():
    """oneDNN sums the gradient of a bias otherwise where there is one of the filter, read or not."""
    model = keras.Sequential([keras.Input((9, 9, 4)), Frozen(), keras.layers.Conv2D(4, 3), Frozen()])
    x, call = noise(5, 9, 9, 4), tfgc.recompute(model)

    def step(call, sources):
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(sources)
            loss = tf.reduce_sum(call(x) ** 2)
        return tape.gradient(loss, sources)

    weights = [v.value for v in model.weights]
    with graph_optimizer.off():
        for sources in (weights[1:3], [x, *weights], [weights[1], weights[5]], weights[1:3]):
            same(tf.function(functools.partial(step, model, sources))(), step(call, sources))


def test_the_gradient_of_a_bias_beside_a_frozen_filter():
    model = keras.Sequential([keras.Input((9, 9, 4)), Frozen(), Frozen()])
    x = noise(5, 9, 9, 4)

    def step(call):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(call(x) ** 2)
        return tape.gradient(loss, model.trainable_variables)

    with graph_optimizer.off():
        same(tf.function(step)(model), step(tfgc.recompute(model)))


def test_sizes_that_go_on_changing_are_traced_once(monkeypatch):
    layer, traced = keras.layers.Dense(3), []
    monkeypatch.setattr(joint, "Trace", lambda *args: traced.append(1) or step_trace.Trace(*args))

    def counted(fn, least):
        call = tfgc.recompute(fn)
        with graph_optimizer.off():
            for n in range(1, 8):
                traced.clear()
                inputs = (noise(2, n, 3),)
                same(gradients(fn, inputs, graph=True), gradients(call, inputs))
                assert bool(traced) == (n <= least)

    counted(lambda x: tf.reduce_sum(tf.tanh(layer(x)), axis=1), 3)
    # What computes with a size in Python is traced for each.
    counted(lambda x: tf.reshape(layer(x), (2, x.shape[1] * 3)), 7)


def test_a_branch_with_a_state_under_xla():
    """TensorFlow has other gradients of branches there."""
    layer, x = keras.layers.SpectralNormalization(keras.layers.Dense(4)), noise(3, 5)
    layer(x)
    start = layer.get_weights()

    def step(call):
        layer.set_weights(start)

        @tf.function(jit_compile=True)
        def run():
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(call(x, training=True) ** 2)
            return tape.gradient(loss, layer.trainable_variables)

        return [*run(), *layer.get_weights()]

    for a, b in zip(step(layer), step(tfgc.recompute(layer)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


@BOTH
@pytest.mark.parametrize("activation", [tf.nn.sigmoid, tf.nn.softmax])
def test_gradients_by_an_argument_that_an_activation_made(activation, graph):
    """Keras looks for logits behind such a tensor, so they go in with it; gradients go to the tensor."""

    def gradients(scaled):
        x = noise(3, 4)

        def step():
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = activation(x)
                loss = tf.reduce_sum(scaled(y) * scaled(y + 1.0)) + tf.reduce_sum(y**2)
            return tape.gradient(loss, [x, y])

        with graph_optimizer.off():
            return (tf.function(step) if graph else step)()

    function = lambda y: tf.sin(y) * y  # noqa: E731
    for plain, ours in zip(gradients(function), gradients(tfgc.recompute(function)), strict=True):
        np.testing.assert_allclose(ours, plain, rtol=1e-6)


@BOTH
def test_gradients_by_an_argument_that_is_returned(graph):
    def gradients(function):
        def step():
            x = tf.constant(X)
            with tf.GradientTape() as tape:
                tape.watch(x)
                same, made = function(x)
                loss = tf.reduce_sum(made**2)
            return tape.gradient(loss, same)

        return (tf.function(step) if graph else step)()

    function = lambda x: (x, tf.sin(x))  # noqa: E731
    np.testing.assert_array_equal(gradients(tfgc.recompute(function)), gradients(function))


@BOTH
def test_gradients_by_a_result_of_which_others_are_made_are_refused(graph):
    def step(by, of):
        with tf.GradientTape() as tape:
            made = function(tf.constant(X))
            loss = tf.add_n([tf.reduce_sum(made[k] ** 2) for k in of])
        return tape.gradient(loss, [made[k] for k in by])

    def three(x):
        y = x * weight
        return y, tf.sin(y), tf.cos(tf.stop_gradient(y)) * weight

    weight, function = tf.Variable(2.0), tfgc.recompute(three)
    run = tf.function(step) if graph else step
    for by, of in (((0,), (0, 2)), ((0, 1, 2), (2,)), ((1, 2), (1, 2))):
        for k, gradient in zip(by, run(by, of)):
            assert (gradient is not None) == (k in of)
    with pytest.raises(tfgc.UnsupportedModelError, match="a result of which it makes another result"):
        run((0,), (0, 1))


@BOTH
def test_a_function_of_nothing_that_makes_nothing(graph):
    call = tfgc.recompute(lambda: None)
    assert (tf.function(call) if graph else call)() is None
